"""Heat equation solved on a grid 64 × 48 × 128 (x, y, time), as stand-in for the paper's data.

u_t = ∇·(κ ∇u) on a rectangle with the boundary kept at zero, κ = (0.02, 0.01); the solution is
summed exactly from the sines of the grid. At the start there are two hot spots and a hot bar.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments import Run
from tensorjax import convert, mera, tt, tucker

SHAPE = (64, 48, 128)
PRIMES = (2,) * 6 + (2,) * 4 + (3,) + (2,) * 7


def solution() -> np.ndarray:
    """Computes the solution of the heat equation at the inner grid points, (64, 48, 128)."""
    nx, ny, nt = SHAPE
    x, y = np.arange(1, nx + 1) / (nx + 1), np.arange(1, ny + 1) / (ny + 1)
    spot = np.exp(-((x[:, None] - 0.3) ** 2 + (y - 0.4) ** 2) / 0.005)
    other = 0.7 * np.exp(-((x[:, None] - 0.7) ** 2 + (y - 0.6) ** 2) / 0.01)
    bar = 0.5 * (np.abs(x[:, None] + 0.8 * y - 0.9) < 0.05)
    modes_x, modes_y = np.arange(1, nx + 1), np.arange(1, ny + 1)
    sines_x, sines_y = (np.sin(np.pi * np.outer(a, m)) for a, m in ((x, modes_x), (y, modes_y)))
    weights = 4 / ((nx + 1) * (ny + 1)) * (sines_x.T @ (spot + other + bar) @ sines_y)
    rates = np.pi**2 * (0.02 * modes_x[:, None] ** 2 + 0.01 * modes_y**2)
    decay = np.exp(-rates[..., None] * np.linspace(0, 1, nt))
    return np.einsum("xm,yn,mn,mnt->xyt", sines_x, sines_y, weights, decay, optimize=True)


def measure(run: Run, tols: Sequence[float]) -> list[dict[str, Any]]:
    """Converts the heat solution at each tolerance; records entries stored and errors."""
    dense = solution()
    rows = [
        row for tol in run.progress(tols, "heat equation, tolerances") for row in _rows(dense, tol)
    ]
    run.table(
        "heat",
        rows,
        caption=f"Heat equation, {dense.size} entries {SHAPE}: entries stored at a tolerance; "
        "prime factors: the same data as 18 modes of 2 and 3",
        key=["tol", "format"],
    )
    run.metric("heat_errors_within_tol", all(row["error"] <= row["tol"] for row in rows))
    return rows


def _rows(dense: np.ndarray, tol: float) -> list[dict[str, Any]]:
    size = float(np.linalg.norm(dense))
    train, primes = (tt.from_dense(x, tol=tol) for x in (dense, dense.reshape(PRIMES)))
    # A tenth of the tolerance is for the train to start from, the rest for what is made of it.
    fine, fine_primes = (tt.from_dense(x, tol=0.1 * tol) for x in (dense, dense.reshape(PRIMES)))
    small, primes_tucker = (
        tucker.round(convert.tt_to_tucker(x, tol=0.1 * tol)[0], tol=0.8 * tol)
        for x in (fine, fine_primes)
    )
    found, info = convert.tt_to_mera(fine_primes, tol=0.9 * tol)
    contenders = {
        "TT": (train, tt.to_dense(train)),
        "Tucker, core a TT": (small, tucker.to_dense(small)),
        "TT, prime factors": (primes, tt.to_dense(primes)),
        "Tucker, prime factors": (primes_tucker, tucker.to_dense(primes_tucker)),
        "MERA, prime factors": (found, mera.to_dense(found)),
    }
    return [
        {
            "tol": tol,
            "format": name,
            "entries": x.size,
            "compression": dense.size / x.size,
            "error": float(np.linalg.norm(np.ravel(jnp.asarray(full)) - dense.ravel())) / size,
            "disentanglers": len([c for layer in info.layers for c in layer.cuts
                                  if c.rank < c.plain]) if name.startswith("MERA") else None,
        }
        for name, (x, full) in contenders.items()
    ]  # fmt: skip
