"""Part "local" of `bench/device`: local problems of `tt.solve` and `tt.eigsh`.

One product with a local operator between its interfaces, and one truncation, at ranks at which a
device could pay: by NumPy on the host, and on the device with and without the copies that a search
on the host would need. Whole searches on this host come last.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import _problems
from experiments.bench.device import machine
from experiments.bench.device.rows import Budget, Case, Emit, run_cases
from tensorjax import tt

_RANKS = (64, 256, 1024)


def run(budget: Budget, emit: Emit) -> None:
    """Times whole searches, local products and truncations, on host and device."""
    jax.config.update("jax_enable_x64", True)
    tiny = budget.tiny
    found: list[Case] = []
    for rank in (8,) if tiny else _RANKS:
        seconds = 0.02 if tiny else 0.3
        for name, operands in (
            ("eigsh, two sites", two_sites(rank, bond=5, mode=2)),
            ("solve, one site", one_site(rank, bond=4, mode=8 if tiny else 16)),
        ):
            call = functools.partial(product, operands, seconds)
            found.append((f"{name}: product, rank {rank}", call))
        call = functools.partial(truncation, 2 * rank, seconds)
        found.append((f"truncation of {2 * rank} × {2 * rank}", call))
    run_cases([*found, *searches(tiny)], budget, emit)


def searches(tiny: bool) -> list[Case]:
    """Returns cases: a whole run of `tt.eigsh` and one of `tt.solve`, on the host."""
    sites, rank, order, size = (8, 8, 3, 8) if tiny else (32, 96, 8, 128)

    def chain() -> dict[str, Any]:
        z = np.diag([0.5, -0.5])
        up = np.array([[0.0, 1.0], [0.0, 0.0]])
        bond = np.kron(z, z) + 0.5 * (np.kron(up, up.T) + np.kron(up.T, up))
        heisenberg = tt.chain_operator(sites, bond=bond)
        start = time.perf_counter()
        _, _, info = tt.eigsh(heisenberg, tol=1e-4, max_rank=rank, max_sweeps=6)
        note = f"{info.status}, {info.sweeps[0]} sweeps, rank {max(info.ranks[0])}"
        return {"host ms": 1e3 * (time.perf_counter() - start), "note": note}

    def system() -> dict[str, Any]:
        problem = _problems.systems((order,), size)[1]
        way = problem.ways[0]
        start = time.perf_counter()
        _, info = way.call()
        note = f"{info.status}, {info.sweeps} sweeps, rank {max(info.ranks)}"
        return {"host ms": 1e3 * (time.perf_counter() - start), "note": note}

    return [
        (f"eigsh, Heisenberg, {sites} sites, rank {rank}, whole", chain),
        (f"solve, convection, d = {order}, n = {size}, whole", system),
    ]


def two_sites(rank: int, bond: int, mode: int) -> list[np.ndarray]:
    """Draws the operands of a two-site product: interfaces, operator cores, vector."""
    core, side = (bond, mode, mode, bond), (rank, bond, rank)
    return _normal(side, core, core, side, (rank, mode, mode, rank))


def one_site(rank: int, bond: int, mode: int) -> list[np.ndarray]:
    """Draws the operands of a one-site product: interfaces, operator core, vector."""
    side = (rank, bond, rank)
    return _normal(side, (bond, mode, mode, bond), side, (rank, mode, rank))


def _normal(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in shapes]


def applied(xp: Any, lefts: Any, *operands: Any) -> Any:
    """Applies a local operator between its interfaces to a vector, by matrix products."""
    *cores, rights, x = operands
    t = xp.tensordot(lefts, x, (2, 0))  # (row, bond, modes …, rank)
    for core in cores:
        t = xp.tensordot(t, core, ((1, 2), (0, 2)))  # (row, modes left …, rank, rows …, bond)
        t = xp.moveaxis(t, -1, 1)
    return xp.tensordot(t, rights, ((1, 2), (1, 2)))


def product(operands: list[np.ndarray], seconds: float) -> dict[str, Any]:
    """Times the application of a local operator on host and device; returns the row."""
    lefts, *cores, _, x = operands
    flops = 4.0 * lefts.size * x.size / len(lefts)  # with both interfaces
    flops += sum(2.0 * x.size * core.size / core.shape[1] for core in cores)
    highest = jax.default_matmul_precision("highest")

    def on_device(*arrays: Any) -> Any:
        with highest:
            return applied(jnp, *arrays)

    return _beside(functools.partial(applied, np), on_device, operands, flops, seconds)


def truncation(size: int, seconds: float) -> dict[str, Any]:
    """Times a singular value decomposition on host and device; returns the row."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((size, size)) * np.exp(-20 / size * np.arange(size))

    def on_host(x: Any) -> Any:
        return np.linalg.svd(x, full_matrices=False)[1]

    def on_device(x: Any) -> Any:
        u, s, vh = jnp.linalg.svd(x, full_matrices=False)
        return s + 0 * (u[0] + vh[:, 0])  # all of it is computed

    return _beside(on_host, on_device, [x], 22.0 * size**3, seconds)


def _beside(
    on_host: Callable[..., Any],
    on_device: Callable[..., Any],
    operands: list[np.ndarray],
    flops: float,
    seconds: float,
) -> dict[str, Any]:
    """Times a function on host and device, in double and single precision; returns the row."""
    expected = np.asarray(on_host(*operands))
    compiled = jax.jit(on_device)
    *fixed, last = (jnp.asarray(x) for x in operands)

    def copied(x: np.ndarray) -> np.ndarray:
        return np.asarray(compiled(*fixed, x))

    found = np.asarray(compiled(*fixed, last))
    single = [x.astype(jnp.float32) for x in (*fixed, last)]
    device = machine.median(compiled, *fixed, last, seconds=seconds)
    return {
        "host ms": 1e3 * machine.median(on_host, *operands, seconds=seconds),
        "device ms": 1e3 * device,
        "with copies ms": 1e3 * machine.median(copied, operands[-1], seconds=seconds),
        "float32 ms": 1e3 * machine.median(compiled, *single, seconds=seconds),
        "device TFLOP/s": flops / device / 1e12,
        "error": float(np.abs(found - expected).max() / np.abs(expected).max()),
    }
