"""Results of an earlier prototype in NumPy; none of them is the paper's.

P2 in fixed coordinates from d = 6 on is a closed form, the largest rank at any bond and time.
"""

from typing import Any


def _rows(problem: str, tol: float, **cells: Any) -> list[dict[str, Any]]:
    """Returns table rows of a problem, one for each kind of coordinates."""
    names = {"feedback": "ours, κ = 20"}
    return [
        {"problem": problem, "tol": tol, "coordinates": names.get(name, name), **dict(
            zip(("rank", "error"), value if isinstance(value, tuple) else (value, None),
                strict=True))}
        for name, value in cells.items()
    ]  # fmt: skip


PLANE = [
    *_rows("P1", 1e-6, fixed=15, convex=7, ours=(2, 3.8e-6)),
    *_rows("P1", 1e-8, fixed=21, convex=21, ours=(3, 5.7e-7)),
    *_rows("P3", 1e-8, fixed=61),
    *_rows("P4", 1e-3, fixed=5, convex=2, ours=2),
    *_rows("P4", 1e-4, fixed=8, convex=3, ours=3),
    *_rows("P4", 1e-6, fixed=14, convex=14, ours=11),
    *_rows("P4", 1e-8, fixed=22, convex=22, ours=19),
    *_rows("P5", 1e-4, fixed=11, ours=6),
    *_rows("P6", 1e-4, fixed=6, ours=3),
    *_rows("P6", 1e-6, fixed=10, ours=4),
    *_rows("P7", 1e-6, fixed=4, ours=15, feedback=3),
]
FAMILY = [
    *_rows("P2, d = 3", 1e-6, fixed=9, ours=(2, 3e-9)),
    *_rows("P2, d = 6", 1e-6, fixed=50, ours=(4, 7e-7)),
    *_rows("P2, d = 10", 1e-6, fixed=75, ours=(6, 1.3e-6)),
]


def of(rows: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Selects the prototype's rows that match a row of ours."""
    keys = {(r["problem"], r["tol"], r["coordinates"]) for r in ours}
    return [r for r in rows if (r["problem"], r["tol"], r["coordinates"]) in keys]
