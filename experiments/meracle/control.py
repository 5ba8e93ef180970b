"""Negative control: trains without structure, for which no gain may be reported."""

from typing import Any

import jax

from experiments import Run
from tensorjax import convert, tt

# (mode size, TT-rank, number of modes)
CASES = ((2, 4, 12), (4, 4, 8), (4, 8, 8))
TOL = 1e-6


def measure(run: Run, *, trains: int, seed: int) -> list[dict[str, Any]]:
    """Converts random trains to MERAs and records the entries stored."""
    cases = [(case, number) for case in CASES for number in range(trains)]
    rows = []
    for (n, rank, modes), number in run.progress(cases, "random trains"):
        key = jax.random.fold_in(jax.random.key(seed + 1), 100 * n + number)
        t = tt.random(key, (n,) * modes, rank, float)
        found, info = convert.tt_to_mera(t, tol=TOL)
        cuts = [cut for layer in info.layers for cut in layer.cuts]
        rows.append(
            {
                "n": n,
                "TT-rank": rank,
                "modes": modes,
                "train": number,
                "TT": info.size_tt,
                "Tucker": info.size_tucker,
                "MERA": found.size,
                "disentanglers": sum(c.how != "identity" for c in cuts),
                "error": info.error,
                "pays": info.pays,
                "seconds": info.seconds,
            }
        )
    run.table(
        "control",
        rows,
        caption=f"Random tensor trains, tolerance {TOL}: entries stored; a MERA should not pay",
        key=["n", "TT-rank", "modes", "train"],
    )
    run.metric("control_gains_reported", sum(row["pays"] for row in rows))
    return rows
