"""Plain NumPy counterparts of what the tests check, in double precision and without shortcuts."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

REAL = (np.float32, np.float64)
DTYPES = (*REAL, np.complex64, np.complex128)


def infinite(tensor):
    """A tensor of any format with its entries times infinity, which its own operators refuse."""
    return jax.tree.map(lambda a: a * np.inf, tensor)


def eps(dtype: Any) -> float:
    return float(jnp.finfo(dtype).eps)


def wide(x: Any) -> np.ndarray:
    """A NumPy copy in float64 or complex128."""
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def norm(x: Any) -> float:
    return float(np.linalg.norm(wide(x).ravel()))


def error(x: Any, y: Any) -> float:
    """‖x − y‖ of two arrays."""
    return norm(wide(x) - wide(y))


# Random arrays -----------------------------------------------------------------------------------


def normal(rng: np.random.Generator, shape: Sequence[int], dtype: Any = np.float64) -> np.ndarray:
    x = rng.standard_normal(tuple(shape))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        x = x + 1j * rng.standard_normal(tuple(shape))
    return x.astype(dtype)


def matrix(rng: np.random.Generator, m: int, n: int, s: Any, dtype: Any) -> np.ndarray:
    """An m × n matrix with singular values ``s``."""
    kind = np.result_type(dtype, np.float64)
    u, v = (np.linalg.qr(normal(rng, (k, len(s)), kind))[0] for k in (m, n))
    return ((u * s) @ v.conj().T).astype(dtype)


def cores(
    rng: np.random.Generator, shape: Sequence[int], rank: int | Sequence[int], dtype: Any
) -> list[np.ndarray]:
    """Random cores of a train, one rank for all bonds or one for each."""
    inner = [rank] * (len(shape) - 1) if isinstance(rank, int) else list(rank)
    ranks = [1, *inner, 1]
    kind = np.complex128 if jnp.issubdtype(dtype, jnp.complexfloating) else np.float64
    return [
        (normal(rng, (ranks[k], n, ranks[k + 1]), kind) / ranks[k + 1] ** 0.5).astype(dtype)
        for k, n in enumerate(shape)
    ]


def hilbert(shape: Sequence[int], dtype: Any = np.float64) -> np.ndarray:
    """1 / (i_1 + … + i_d + 1): singular values that decay exponentially."""
    x = 1 / (np.indices(shape).sum(0) + 1.0)
    return (x * (1 + 1j) if jnp.issubdtype(dtype, jnp.complexfloating) else x).astype(dtype)


# Trains ------------------------------------------------------------------------------------------


def multiplied(cores: Sequence[Any]) -> np.ndarray:
    """All entries of a train of these cores, in a row."""
    out = np.ones((1, 1))
    for core in map(wide, cores):
        flat = core.reshape(core.shape[0], -1)
        out = (out @ flat).reshape(-1, core.shape[-1])
    return out


def dense(t: Any) -> np.ndarray:
    """The dense array of a TT, (n_1, …), or of a TTMatrix, (∏ m_k, ∏ n_k)."""
    out = multiplied(t.cores)
    if t.cores[0].ndim == 3:
        return out.reshape(t.shape)
    pairs = [n for pair in zip(t.row_shape, t.col_shape, strict=True) for n in pair]
    d = len(t.cores)
    return out.reshape(pairs).transpose(*range(0, 2 * d, 2), *range(1, 2 * d, 2)).reshape(t.shape)


def tucker_dense(t: Any) -> np.ndarray:
    """The dense array of a Tucker tensor, its core an array or a train."""
    out = dense(t.core) if hasattr(t.core, "cores") else wide(t.core)
    for k, u in enumerate(t.factors):
        out = np.moveaxis(np.tensordot(wide(u), out, (1, k)), 0, k)
    return out


def combined(*terms: tuple[float, list[np.ndarray]]) -> list[np.ndarray]:
    """Cores of Σ c·x, block-diagonal, without the library."""
    lists = [[*x[:-1], x[-1] * np.asarray(c, x[-1].dtype)] for c, x in terms]
    out = []
    for k, parts in enumerate(zip(*lists, strict=True)):
        if len(lists[0]) == 1:
            out.append(sum(parts))
            continue
        left = [p.shape[0] if k else 0 for p in parts]
        right = [p.shape[2] if k < len(lists[0]) - 1 else 0 for p in parts]
        core = np.zeros(
            (sum(left) or 1, parts[0].shape[1], sum(right) or 1), np.result_type(*parts)
        )
        for j, p in enumerate(parts):
            a, b = sum(left[:j]), sum(right[:j])
            core[a : a + p.shape[0], :, b : b + p.shape[2]] = p
        out.append(core)
    return out


def regauged(x: list[np.ndarray], scale: float, spread: float) -> list[np.ndarray]:
    """The same tensor with cores scaled up and down in turn, and bonds by diagonal matrices."""
    out = [c.astype(np.result_type(c, np.float64)) for c in x]
    for k in range(len(out) - 1):
        gauge = scale ** (-1) ** k * np.logspace(-spread, spread, out[k].shape[2])
        out[k] = out[k] * gauge
        out[k + 1] = out[k + 1] / gauge[:, None, None]
    return [c.astype(x[0].dtype) for c in out]


def hard_trains(
    rng: np.random.Generator, shape: Sequence[int], dtype: Any
) -> dict[str, tuple[list[np.ndarray], float]]:
    """Trains that are hard to round, each with the size of the terms it is a sum of."""
    a, b = cores(rng, shape, 3, dtype), cores(rng, shape, 2, dtype)
    mixed = combined((1, a), (1e-3, b))
    decaying = [
        c * np.logspace(0, -7, c.shape[2]).astype(dtype) for c in cores(rng, shape, 6, dtype)
    ]
    size = norm(multiplied(a))
    return {
        "random": (a, size),
        "twice": (combined((1, a), (1, a)), 2 * size),
        "nearly half": (combined((1, a), (-0.5, a), (1e-4, b)), size),
        "difference 1e-3": (combined((1, a), (1e-3, b), (-1, a)), size),
        "difference 1e-6": (combined((1, a), (1e-6, b), (-1, a)), size),
        "gauge 1e8": (regauged(mixed, 1e8, 0), size),
        "gauge 1e-8": (regauged(mixed, 1e-8, 0), size),
        "diagonal gauge": (regauged(mixed, 1, 5), size),
        "decaying": (decaying, 0.0),
        "zero": ([0 * c for c in a], 0.0),
        "zero inside": ([*a[:-1], 0 * a[-1]], 0.0),
    }


def mode_tails(x: Any, k: int) -> np.ndarray:
    """`tails` of the singular values of the unfolding along mode k."""
    flat = np.moveaxis(wide(x), k, 0).reshape(np.shape(x)[k], -1)
    return tails(np.linalg.svd(flat, compute_uv=False))


def tt_svd(
    x: Any, *, tol: float | None = None, rank: int | None = None
) -> tuple[tuple[int, ...], float]:
    """Oseledets' TT-SVD (2011, algorithm 1), word for word: its ranks, and its error."""
    x = wide(x)
    delta = 0.0 if tol is None else tol * norm(x) / math.sqrt(max(x.ndim - 1, 1))
    ranks, rest, left = [1], x, np.ones((1, 1))
    for n in x.shape[:-1]:
        u, s, vh = np.linalg.svd(rest.reshape(ranks[-1] * n, -1), full_matrices=False)
        r = len(s) if tol is None else max(int((tails(s) > delta).sum()), 1)
        r = r if rank is None else min(r, rank)
        left = (left @ u[:, :r].reshape(ranks[-1], -1)).reshape(-1, r)
        ranks.append(r)
        rest = s[:r, None] * vh[:r]
    return (*ranks, 1), error(left @ rest.reshape(ranks[-1], -1), x.reshape(len(left), -1))


def tails(s: np.ndarray) -> np.ndarray:
    """sqrt(s_k² + s_{k+1}² + …) for every k."""
    return np.sqrt(np.cumsum(s[::-1] ** 2)[::-1])


def bond_tails(x: Any, ranks: Sequence[int]) -> np.ndarray:
    """For each bond, the best error of cutting that unfolding alone to its rank."""
    x = wide(x)
    out = []
    for k, r in enumerate(ranks[1:-1], start=1):
        s = np.linalg.svd(x.reshape(math.prod(x.shape[:k]), -1), compute_uv=False)
        out.append(float(np.append(tails(s), 0)[min(r, len(s))]))
    return np.asarray(out)


# Derivatives and compilations --------------------------------------------------------------------


def check_gradient(
    f: Callable[[Any], Any],
    x: Any,
    rng: np.random.Generator,
    gradient: Any = None,
    tol: float = 1e-6,
) -> None:
    """Compares a gradient with the central difference of ``f`` along one random direction.

    JAX's gradient g of a real f of complex x is the one with df = Re Σ g dx. Everything is in
    double precision; ``gradient`` is that of JAX if None.
    """
    gradient = jax.grad(f)(x) if gradient is None else gradient
    leaves, tree = jax.tree.flatten(x)
    steps = [normal(rng, leaf.shape, leaf.dtype) for leaf in leaves]
    h = 1e-5 * math.hypot(*map(norm, leaves)) / math.hypot(*map(norm, steps))

    def moved(h: float) -> Any:
        return tree.unflatten([leaf + h * s for leaf, s in zip(leaves, steps, strict=True)])

    numeric = float(f(moved(h)) - f(moved(-h))) / (2 * h)
    pairs = list(zip(map(wide, jax.tree.leaves(gradient)), steps, strict=True))
    assert all(np.isfinite(g).all() for g, _ in pairs)
    exact = sum(float(np.sum(g * s).real) for g, s in pairs)
    scale = sum(norm(g) * norm(s) for g, s in pairs)
    assert abs(exact - numeric) <= tol * scale + 1e-9, (exact, numeric, scale)


_compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: (
        _compiled.append(event) if event == "/jax/core/compile/backend_compile_duration" else None
    )
)


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Yields a list that grows by one entry for every program that XLA compiles meanwhile."""
    start = len(_compiled)
    found: list[str] = []
    yield found
    found.extend(_compiled[start:])
