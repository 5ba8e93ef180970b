"""Tucker format: a small core, dense or a tensor train, and one orthonormal factor per mode.

Example:
  >>> import jax.numpy as jnp
  >>> from tensorjax import tucker
  >>> i, j, k = jnp.meshgrid(*3 * [jnp.arange(8.0)], indexing="ij")
  >>> t = tucker.from_dense(i + j * k, tol=1e-5)
  >>> t
  Tucker(shape=(8, 8, 8), ranks=(2, 2, 2), core=dense, dtype=float32)
  >>> bool(jnp.allclose(tucker.to_dense(t), i + j * k, atol=1e-3))
  True
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax.contract import einsum
from tensorjax.linalg import Method

__all__ = ["Tucker", "from_dense", "to_dense"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class Tucker:
    """A tensor in Tucker format: x = core ×_1 U_1 ×_2 U_2 … ×_d U_d.

    Attributes:
      core: (s_1, …, s_d), or a `tensorjax.tt.TT` of that shape.
      factors: d arrays U_k of shape (n_k, s_k).

    Raises:
      ValueError: the factors do not fit the core. TypeError: integer dtypes.

    Source: L. De Lathauwer, B. De Moor, J. Vandewalle, "A multilinear singular value
    decomposition", SIAM J. Matrix Anal. Appl. 21 (2000).
    """

    core: Any
    factors: tuple[jax.Array, ...]

    def __init__(self, core: Any, factors: Iterable[Any]):
        checked = tuple(
            jnp.asarray(_check.inexact(f"factors[{k}]", u)) for k, u in enumerate(factors)
        )
        if isinstance(core, jax.Array | np.ndarray):
            core = jnp.asarray(_check.inexact("core", core))
        elif not hasattr(core, "cores"):
            raise TypeError(f"core: expected an array or a TT, got {type(core).__name__}")
        for k, u in enumerate(checked):
            if u.ndim != 2 or k >= len(core.shape) or u.shape[1] != core.shape[k]:
                expected = core.shape[k] if k < len(core.shape) else "no such mode"
                raise ValueError(
                    f"factors[{k}]: expected shape (n, {expected}) to fit the core {core.shape}, "
                    f"got {u.shape}"
                )
        if len(checked) != len(core.shape):
            raise ValueError(
                f"factors: expected one per mode of the core {core.shape}, got {len(checked)}"
            )
        object.__setattr__(self, "core", core)
        object.__setattr__(self, "factors", checked)

    @classmethod
    def _unchecked(cls, core: Any, factors: Any) -> "Tucker":
        self = object.__new__(cls)
        object.__setattr__(self, "core", core)
        object.__setattr__(self, "factors", factors)
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Mode sizes (n_1, …, n_d)."""
        return tuple(u.shape[-2] for u in self.factors)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Multilinear ranks (s_1, …, s_d)."""
        return tuple(u.shape[-1] for u in self.factors)

    @property
    def order(self) -> int:
        """Number of modes d."""
        return len(self.factors)

    @property
    def dtype(self) -> Any:
        """The dtype that arithmetic between core and factors gives."""
        return jnp.result_type(*jax.tree.leaves(self))

    @property
    def size(self) -> int:
        """Count of stored numbers, core and factors."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self))

    def __repr__(self) -> str:
        if not all(hasattr(u, "shape") for u in self.factors):  # inside JAX's tree machinery
            return f"Tucker({self.core!r}, {self.factors!r})"
        kind = "dense" if hasattr(self.core, "ndim") else repr(self.core)
        return (
            f"Tucker(shape={self.shape}, ranks={self.ranks}, core={kind}, "
            f"dtype={jnp.dtype(self.dtype).name})"
        )


jax.tree_util.register_pytree_with_keys(
    Tucker,
    lambda t: (
        (
            (jax.tree_util.GetAttrKey("core"), t.core),
            (jax.tree_util.GetAttrKey("factors"), t.factors),
        ),
        None,
    ),
    lambda _, children: Tucker._unchecked(*children),
    lambda t: ((t.core, t.factors), None),
)


def from_dense(
    x: Any,
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
    method: Method = "auto",
    key: jax.Array | None = None,
) -> Tucker:
    """Sequentially truncated higher-order SVD of a dense array.

    Args:
      x: (n_1, …, n_d), d ≥ 1, floating or complex.
      tol: ‖x − result‖_F ≤ tol·‖x‖_F, guaranteed, for tol ≥ 10 eps. Alone it picks the ranks,
        outside jit. With ``rank``, shapes are those of ``rank`` and what ``tol`` discards is zero.
      rank: one int for all modes (cut at n_k) or one per mode. Static: jit, vmap, grad work.
      method: "auto", "svd", "gram" or "randomized"; see `tensorjax.linalg.choose`.
      key: for "randomized"; a fixed draw if None.

    Returns:
      Tucker with a dense core and orthonormal factors. The squared error is the sum of the energies
      discarded mode by mode.

    Raises:
      TypeError: integer data, or ``tol`` alone under a JAX transformation.
      ValueError: neither tol nor rank, tol < 10 eps, impossible ranks, NaN or Inf.

    Example:
      >>> import jax.numpy as jnp
      >>> from_dense(jnp.ones((3, 4, 5)), rank=2).ranks
      (2, 2, 2)

    Source: N. Vannieuwenhoven, R. Vandebril, K. Meerbergen, "A new truncation strategy for the
    higher-order singular value decomposition", SIAM J. Sci. Comput. 34 (2012), algorithm 1.
    """
    x = _check.inexact("x", x)
    if x.ndim == 0:
        raise ValueError("x: expected at least one axis, got a scalar")
    _check.shape("x.shape", x.shape)
    _check.tol_or_rank(tol, rank, x)
    _check.finite("x", x)
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    tol = None if tol is None else _check.tolerance(tol, dtype)
    ranks = None if rank is None else _mode_ranks(rank, x.shape)
    if tol is not None and not _check.is_traced(x, tol):
        t = _dynamic(np.asarray(x), tol, method, key, dtype)
        if ranks is None:
            return t
        if all(r <= cap for r, cap in zip(t.ranks, ranks, strict=True)):
            return _pad(t, ranks)
    share = None if tol is None or _check.is_traced(tol) else tol**2 / x.ndim
    if method == "auto" and tol is None and x.size > 2**16:
        method = "gram"  # as in tt.from_dense: an exact SVD would take many times longer
    chosen = linalg.choose(method, share, linalg.factor_dtype(dtype))
    if tol is not None and share is None:
        chosen = "svd"  # a traced tolerance may be anything
    assert ranks is not None
    return _static(jnp.asarray(x), tol, key, ranks, chosen)


def _mode_ranks(rank: int | Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    if isinstance(rank, Sequence) and len(rank) != len(shape):
        raise ValueError(f"rank: expected one int or {len(shape)}, one per mode, got {len(rank)}")
    return _check.bond_ranks(rank, shape)


@jax.jit(static_argnums=(3, 4))
def _static(x: jax.Array, tol: Any, key: Any, ranks: tuple[int, ...], method: Method) -> Tucker:
    share = None if tol is None else tol**2 / x.ndim
    dtype = x.dtype
    x, exponent = linalg.normalized(x.astype(linalg.factor_dtype(dtype)))
    core, factors = _st_hosvd(x, ranks, share, method, key)
    core = linalg.scaled(core, exponent).astype(dtype)
    return Tucker._unchecked(core, tuple(u.astype(dtype) for u in factors))


def _dynamic(x: np.ndarray, tol: float, method: Method, key: Any, dtype: Any) -> Tucker:
    """On the host: LAPACK in double precision, exact ranks, no compilation."""
    if x.dtype.kind not in "fc" or x.dtype.itemsize < 4:
        x = x.astype(np.float32)
    wide = np.result_type(x.dtype, np.float64)
    eps = linalg.epsilon(dtype)
    budget = max(tol**2 - (x.ndim + 1) * (eps / 2) ** 2, tol**2 / 4)
    chosen = linalg.choose(method, budget / x.ndim, wide)
    core, factors = _st_hosvd(x, None, budget / x.ndim, chosen, key)
    out = Tucker(*jax.device_put((core.astype(dtype), [u.astype(dtype) for u in factors])))
    if tol < linalg.VERIFY_BELOW * eps and not _holds(out, x.astype(wide), tol):
        return Tucker(jnp.asarray(x, dtype), [jnp.eye(n, dtype=dtype) for n in x.shape])
    return out


def _holds(t: Tucker, x: np.ndarray, tol: float) -> bool:
    approximation = np.asarray(t.core).astype(x.dtype)
    for k, u in enumerate(t.factors):
        approximation = _times(approximation, np.asarray(u).astype(x.dtype), k)
    return bool(np.linalg.norm(approximation - x) <= tol * np.linalg.norm(x))


def _st_hosvd(
    x: Any, ranks: Sequence[int] | None, share: Any, method: Method, key: Any
) -> tuple[Any, list[Any]]:
    keys = [None] * x.ndim if key is None else jax.random.split(key, x.ndim)
    tail, factors, core = None, [], x
    for k in range(x.ndim):
        matrix = _unfold(core, k)
        allowed = {"share": share} if tail is None else {"tail": tail}
        u, energies, discarded = linalg.left_basis(
            matrix,
            rank=None if ranks is None else min(ranks[k], *matrix.shape),
            method=method,
            key=keys[k],
            **allowed,
        )
        if tail is None and share is not None:
            tail = share * (energies.sum() + discarded)
        factors.append(u)
        rest = core.shape[:k] + core.shape[k + 1 :]
        xp = np if linalg.is_host(x) else jnp
        core = xp.moveaxis(linalg.project(u, matrix).reshape(-1, *rest), 0, k)
    return core, factors


def _unfold(x: Any, k: int) -> Any:
    xp = np if linalg.is_host(x) else jnp
    return xp.moveaxis(x, k, 0).reshape(x.shape[k], -1)


def _times(x: Any, matrix: Any, k: int) -> Any:
    """Mode-k product x ×_k matrix."""
    xp = np if linalg.is_host(x) else jnp
    image = linalg.matmul(matrix, _unfold(x, k))
    return xp.moveaxis(image.reshape(-1, *x.shape[:k], *x.shape[k + 1 :]), 0, k)


def _pad(t: Tucker, ranks: Sequence[int]) -> Tucker:
    more = [r - s for r, s in zip(ranks, t.ranks, strict=True)]
    core = jnp.pad(t.core, [(0, m) for m in more])
    return Tucker(
        core, [jnp.pad(u, ((0, 0), (0, m))) for u, m in zip(t.factors, more, strict=True)]
    )


@jax.jit
def to_dense(t: Tucker) -> jax.Array:
    """The dense array of shape (n_1, …, n_d); the core may be dense or a tensor train.

    Example:
      >>> import jax.numpy as jnp
      >>> print(to_dense(Tucker(jnp.ones((1, 1)), [jnp.ones((2, 1)), jnp.ones((2, 1))])))
      [[1. 1.]
       [1. 1.]]
    """
    highest = jax.lax.Precision.HIGHEST
    letters = [chr(ord("a") + k) for k in range(t.order)]
    if isinstance(t.core, jax.Array):
        inputs = ["".join(letters), *(c.upper() + c for c in letters)]
        operands = (t.core, *t.factors)
        output = "".join(letters).upper()
        return einsum(f"{','.join(inputs)}->{output}", *operands, precision=highest)
    out = jnp.ones((1, 1), t.dtype)
    for core, u in zip(t.core.cores, t.factors, strict=True):
        out = einsum("za,aib,ni->znb", out, core, u, precision=highest).reshape(-1, core.shape[-1])
    return out.reshape(t.shape)
