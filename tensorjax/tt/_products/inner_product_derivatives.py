"""Derivatives of inner products and norms of trains, on the host where their cores are concrete.

XLA takes a second to compile the derivative of a chain of a dozen products, anew for all shapes.
Where only tangents are traced, as by `jax.grad` outside of `jax.jit`, NumPy computes the
gradient with respect to all cores, and what is compiled is one sum of products with tangents.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from tensorjax import _blas_threads, _check, linalg
from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.overlaps import bond_overlap, right_overlap
from tensorjax._cores.scaling import norms_near_one
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax.tt._entries import on_host
from tensorjax.tt._products.product_kernels import common_dtype

# A factor m·2^e of a product that may leave the range of a dtype.
Scaled = tuple[Any, int]


def differentiable_inner(program: Callable[[TT, TT], Any]) -> Callable[[TT, TT], Any]:
    """Returns the program of the inner product, with a derivative by NumPy for concrete cores."""
    rule = jax.custom_jvp(program)

    def derivative(primals: Any, tangents: Any) -> Any:
        (x, y), moved = primals, [_moved(t) for t in tangents]
        dtype = _served_by_numpy("inner", (*x.cores, *y.cores))
        if dtype is None:
            return jax.jvp(program, primals, tuple(_filled(t) for t in tangents))
        value, *gradients = _gradients(x, y, dtype)
        given = [
            ([linalg.scaled(*g).astype(dtype) for g in part], t)
            for part, t in zip(gradients, moved, strict=True)
        ]
        terms = [f(g, t) for f, (g, t) in zip((_conjugate, _plain), given, strict=True) if t]
        return _constant(linalg.scaled(*value).astype(dtype)), sum(terms)

    # Of a train that does not move no zeros are made, for which a program a shape is compiled.
    rule.defjvp(derivative, symbolic_zeros=True)
    return rule


def differentiable_norm(program: Callable[[TT], Any]) -> Callable[[TT], Any]:
    """Returns the program of the norm, with a derivative by NumPy for concrete cores."""
    rule = jax.custom_jvp(program)

    @rule.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x,) = primals
        dtype = _served_by_numpy("norm", x.cores)
        if dtype is None:
            return jax.jvp(program, primals, tangents)
        (square, exponent), left, _ = _gradients(x, x, dtype)
        half = exponent // 2
        with np.errstate(all="ignore"):
            root = np.sqrt(np.maximum(np.ldexp(square.real, exponent - 2 * half), 0))
            divisor = root if root != 0 else np.ones_like(root)  # that of a zero train is zero
            gradient = [linalg.scaled(g / divisor, e - half).astype(dtype) for g, e in left]
            value = np.ldexp(root, half).astype(np.finfo(dtype).dtype)
        return _constant(value), _norm_tangent(gradient, tangents[0].cores)

    return rule


def _served_by_numpy(kind: str, cores: Sequence[Any]) -> Any:
    """Returns the common dtype of cores whose derivative NumPy computes; None if XLA does."""
    dtype, same = common_dtype(cores)
    if not _check.is_traced(cores) and any(getattr(c, "committed", False) for c in cores):
        return None  # gradients are to be on that device too
    shapes = tuple([c.shape for c in cores])
    facts = {
        "dtype": dtype,
        "one_dtype": same,
        "key": f"{kind}, derivative",
        "shapes": shapes,
        "work": lambda: 4.0 * sum(r * n * s * (r + s) for r, n, s in shapes),
    }
    return dtype if choose_kernel("tt.inner, derivative", cores, **facts) is NUMPY else None


def _gradients(x: TT, y: TT, dtype: Any) -> tuple[Scaled, list[Scaled], list[Scaled]]:
    """Computes ⟨x, y⟩, and the cores that tangents are multiplied by: of conjugated x, and of y.

    In double precision: of the cores on both sides of one, what they have in common is a matrix at
    its left and its right bond, kept near one by powers of two.
    """
    double = np.result_type(dtype, np.float64)
    with np.errstate(all="ignore"), _blas_threads.one_thread(True):
        xs, p = zip(*[_near_one(c) for c in on_host(x.cores, double)], strict=True)
        ys, q = (xs, p)
        if x is not y:
            ys, q = zip(*[_near_one(c) for c in on_host(y.cores, double)], strict=True)
        one: Scaled = (np.ones((1, 1), double), 0)
        before: list[Scaled] = [one]
        after: list[Scaled] = [one]
        for a, b in zip(xs, ys, strict=True):
            before.append(_carried(bond_overlap(a, absorb(before[-1][0], b)), before[-1][1]))
        for a, b in zip(reversed(xs), reversed(ys), strict=True):
            image = times_right(b, after[-1][0].T)
            after.append(_carried(right_overlap(a, image), after[-1][1]))
        shift, left, right = sum(p) + sum(q), [], []
        for k, (a, b) in enumerate(zip(xs, ys, strict=True)):
            (m, e), (n, f) = before[k], after[len(xs) - 1 - k]
            rest = shift + e + f
            left.append((times_right(absorb(m, b), n.T), rest - p[k]))
            right.append((times_right(absorb(m.T, a.conj()), n), rest - q[k]))
        m, e = before[-1]
        return (m[0, 0], e + shift), left, right


def _near_one(core: Any) -> Scaled:
    (core,), exponent = norms_near_one([core])
    return core, exponent


def _carried(matrix: Any, exponent: int) -> Scaled:
    matrix, more = linalg.normalized(matrix)
    return matrix, exponent + int(more)


def _constant(value: Any) -> jax.Array:
    with jax.ensure_compile_time_eval():
        return jax.device_put(np.asarray(value))


def _filled(t: TT) -> TT:
    """Fills a tangent train with zeros where it does not move."""
    cores = [np.zeros(c.shape, c.dtype) if isinstance(c, SymbolicZero) else c for c in t.cores]
    return TT._unchecked(tuple(cores))


def _moved(t: TT) -> Cores | None:
    """Returns the cores of a tangent train; None if it does not move at all."""
    still = all(isinstance(c, SymbolicZero) for c in t.cores)
    return None if still else _filled(t).cores  # type: ignore[return-value]


@jax.jit
def _conjugate(gradient: Any, dx: Any) -> jax.Array:
    return _dot(_joined(dx).conj(), _joined(gradient))


@jax.jit
def _plain(gradient: Any, dy: Any) -> jax.Array:
    return _dot(_joined(gradient), _joined(dy))


@jax.jit
def _norm_tangent(gradient: Any, dx: Any) -> jax.Array:
    return _dot(_joined(dx).conj(), _joined(gradient)).real


def _joined(cores: Cores) -> jax.Array:
    """Joins the cores of a train to one vector, for one product with all tangents."""
    return jnp.concatenate([c.ravel() for c in cores])


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, precision=jax.lax.Precision.HIGHEST)
