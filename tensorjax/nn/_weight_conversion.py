"""Dense weights of Flax layers: checks, folding into modes, TT-SVD and ST-HOSVD, certificates."""

import dataclasses
import math
import weakref
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn import dtypes

from tensorjax import _check, tt, tucker
from tensorjax._cores.contractions import times_right
from tensorjax._cores.dense_decompositions import double_of_ours
from tensorjax.nn._mode_factors import bounded, train_ranks
from tensorjax.nn._parameters import check_bytes, gate_dtype, parameter_count, settle

Gates = Literal["singular values", "ones"]


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Certificate of a conversion: measured error of a dense weight, and its compression.

    Attributes:
      error: ‖W − W'‖ / ‖W‖ (Frobenius), measured with the parameters as they are stored.
      bound: the guaranteed error: the tolerance, or None where the ranks given, or rounding to
        the dtype of the parameters, do not allow it.
      least: no weight of the same format and ranks has a smaller error, by quasi-optimality.
      ranks: of the layer; like all of these when it was made, whatever became of it in training.
      numbers_before: in the dense layer, bias included.
      numbers: parameters of the new layer, gates and bias included.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> dense = nnx.Linear(64, 64, use_bias=False, rngs=nnx.Rngs(0))
      >>> layer, certificate = nn.from_linear(dense, rank=8)
      >>> certificate.compression > 1, certificate.least <= certificate.error
      (True, True)
    """

    error: float
    bound: float | None
    least: float
    ranks: tuple[int, ...]
    numbers_before: int
    numbers: int

    @property
    def compression(self) -> float:
        """Parameters of the dense layer divided by those of the tensorised layer."""
        return self.numbers_before / self.numbers

    def __str__(self) -> str:
        promised = "none promised" if self.bound is None else f"promised {self.bound:.2g}"
        return (
            f"relative error {self.error:.2g} ({promised}; at these ranks not below "
            f"{self.least:.2g}), ranks {self.ranks}, {self.numbers_before:,} → {self.numbers:,} "
            f"numbers: {self.compression:.3g} times fewer"
        )


# Certificates of converted layers. As attributes they would be part of the pytree structure, so
# that no two converted layers could be stacked or share a compiled program.
certificates: weakref.WeakKeyDictionary[nnx.Module, Certificate] = weakref.WeakKeyDictionary()


def check_plain(layer: Any) -> None:
    """Checks before conversion: ValueError for options of a dense layer that would be lost."""
    general = isinstance(layer, nnx.LinearGeneral)
    weight = layer.embedding if isinstance(layer, nnx.Embed) else layer.kernel
    if type(weight) is not nnx.Param:
        raise ValueError(
            f"layer: expected its weight to be an nnx.Param, got {type(weight).__name__}, which "
            "the parameters of a tensorised layer would not be"
        )
    defaults = {
        "dot_general": None if general else jax.lax.dot_general,
        "dot_general_cls": None,
        "promote_dtype": dtypes.promote_dtype,
        "preferred_element_type": None,
        "conv_general_dilated": jax.lax.conv_general_dilated,
        "feature_group_count": 1,
        "mask": None,
    }
    for name, default in defaults.items():
        given = getattr(layer, name, default)
        if given is not default:
            raise ValueError(
                f"layer.{name}: expected the default, {default}, which is what a tensorised layer "
                f"replaces, got {given}"
            )


def concrete(parameter: Any) -> jax.Array:
    """Returns a dense weight to convert as an array; TypeError if only a shape or traced."""
    value = parameter.get_value()
    if isinstance(value, jax.ShapeDtypeStruct):
        raise TypeError('layer: expected concrete parameters, got shapes; use init="random"')
    if _check.is_traced(value):
        raise TypeError(
            "layer: expected concrete parameters; convert the layer outside jit, vmap and grad"
        )
    return value


def check_gates(gates: str) -> None:
    """Checks the option ``gates`` of conversions of dense layers; raises ValueError if unknown."""
    _check.choice("gates", gates, get_args(Gates))


def compressed(
    x: np.ndarray, dtype: Any, tol: float | None, rank: Any, gates: Gates
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Compresses a dense layer's reshaped weight by TT-SVD; returns TT-cores and gates.

    Args:
      x: in double precision.
      dtype: that the cores will have.
      tol: relative error, or None.
      rank: TT-ranks, or None.
      gates: as for `from_linear`.
    """
    if not np.linalg.norm(x) > 0:
        return _idle(x.shape, (1,) * (x.ndim - 1) if rank is None else train_ranks(rank, x.shape))
    cores = _truncated(x, tol, rank)
    if len(cores) == 1:
        return cores, []
    if not all(c.any() for c in cores):  # a tolerance of more than one allows zero
        return _idle(x.shape, [c.shape[0] for c in cores[1:]])
    # Of half precision only the storage is coarse: small directions are kept as well as large ones.
    eps = min(float(jnp.finfo(dtype).eps), float(jnp.finfo(jnp.float32).eps))
    cores, weights = canonical(cores, 16 * eps)
    return (cores, weights) if gates == "singular values" else _shared(cores, weights)


def _idle(modes: Sequence[int], ranks: Sequence[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Builds trainable TT-cores and gates of a zero dense weight: only the last core is zero."""
    rng, full = np.random.default_rng(0), (1, *ranks, 1)
    shapes = [(full[k], n, full[k + 1]) for k, n in enumerate(modes)]
    cores = [rng.standard_normal(s) / math.sqrt(s[0] * s[1]) for s in shapes[:-1]]
    return [*cores, np.zeros(shapes[-1])], [np.ones(r) for r in ranks]


def canonical(
    cores: Sequence[np.ndarray], cutoff: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Moves singular values of a dense weight's TT-cores into gates; returns cores and gates.

    Args:
      cores: d ≥ 2 arrays (r_{k−1}, n_k, r_k), left-orthonormal up to rounding.
      cutoff: singular values up to this share of the largest of their bond are left out.

    Returns:
      (cores, gates): gate k holds the singular values of bond k over the largest; all cores have
      the same norm.
    """
    out: list[np.ndarray] = []
    gates: list[np.ndarray] = []
    left = cores[-1]
    for core in cores[-2::-1]:
        u, sigma, v = np.linalg.svd(left.reshape(left.shape[0], -1), full_matrices=False)
        keep = max(int((sigma > cutoff * sigma[0]).sum()), 1)
        row = v[:keep].reshape(keep, *left.shape[1:])
        out.append(row / gates[-1] if gates else row)
        gates.append(sigma[:keep] / sigma[0])
        left = times_right(core, u[:, :keep] * sigma[:keep])
    out.append(left / gates[-1])
    return _balanced(out[::-1]), gates[::-1]


def _balanced(cores: list[np.ndarray]) -> list[np.ndarray]:
    """Rescales TT-cores of a dense weight to equal norms; the weight stays the same."""
    norms = [float(np.linalg.norm(c)) for c in cores]
    mean = math.exp(sum(map(math.log, norms)) / len(norms))
    return [c * (mean / norm) for c, norm in zip(cores, norms, strict=True)]


def _shared(
    cores: list[np.ndarray], gates: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Multiplies TT-cores of a dense weight by square roots of the gates, which become ones."""
    roots = [np.ones(1), *map(np.sqrt, gates), np.ones(1)]
    cores = [roots[k][:, None, None] * c * roots[k + 1] for k, c in enumerate(cores)]
    return cores, [np.ones_like(g) for g in gates]


def dense_matrix(
    layer: Any, kinds: Any, name: str, sides: Sequence[str], tol: Any, rank: Any, max_bytes: int
) -> np.ndarray:
    """Returns a dense linear layer's weight in double precision, checked to be convertible.

    ``kinds`` are types that the layer may have, Flax's own first; ``name`` and ``sides`` are its
    attributes with the matrix and with the numbers of rows and columns.
    """
    if type(layer) not in kinds:
        raise TypeError(
            f"layer: expected a flax.nnx.{kinds[0].__name__}, got {type(layer).__name__}; a "
            f"subclass may do more than its {name} says"
        )
    check_plain(layer)
    shape = tuple(getattr(layer, side) for side in sides)
    return dense_parameter(layer, name, shape, tol, rank, max_bytes)


def dense_parameter(
    layer: Any, name: str, shape: tuple[int, ...], tol: Any, rank: Any, max_bytes: int
) -> np.ndarray:
    """Returns a dense weight to be converted, kernel or table, in double precision; checks it."""
    found = concrete(getattr(layer, name))
    if found.shape != shape:
        raise ValueError(
            f"layer.{name}: expected shape {shape}, got {found.shape}; convert stacked layers one "
            "by one, then stack them"
        )
    _check.tol_or_rank(tol, rank)
    check_bytes(found.size, np.float64, max_bytes)
    _check.finite(f"layer.{name}", found)
    return double(found)


def double(x: Any) -> np.ndarray:
    """Copies a dense weight or another array of a layer to the host in double precision."""
    host = np.asarray(x)
    return host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)


def folded(
    matrix: np.ndarray, rows: Sequence[int], columns: Sequence[int], max_bytes: int
) -> np.ndarray:
    """Pads and reshapes a dense layer's weight matrix to a tensor of row and column modes."""
    sides = math.prod(rows), math.prod(columns)
    check_bytes(math.prod(sides), np.float64, max_bytes)
    padding = [(0, side - n) for side, n in zip(sides, matrix.shape, strict=True)]
    return np.pad(matrix, padding).reshape(*rows, *columns)


def paired(matrix: np.ndarray) -> np.ndarray:
    """Merges row mode k with column mode k of a dense weight tensor, for a TT-matrix."""
    order = matrix.ndim // 2
    axes = [axis for k in range(order) for axis in (k, order + k)]
    return matrix.transpose(axes).reshape(
        [matrix.shape[k] * matrix.shape[order + k] for k in range(order)]
    )


@double_of_ours()
def _truncated(x: np.ndarray, tol: float | None, rank: Any) -> list[np.ndarray]:
    """Computes the TT-cores of a dense weight by TT-SVD, to a tolerance or given ranks."""
    caps = None if rank is None else train_ranks(rank, x.shape)
    if tol is not None:
        train = tt.from_dense(x, tol=tol)
        if caps is None or all(map(int.__le__, train.ranks[1:-1], caps)):
            return [np.asarray(c).astype(x.dtype) for c in train.cores]
        caps = tuple(map(min, train.ranks[1:-1], caps))
    return [np.asarray(c).astype(x.dtype) for c in tt.from_dense(x, rank=caps, method="svd").cores]


@double_of_ours()
def truncated_modes(x: np.ndarray, tol: float | None, rank: Any) -> tuple[Any, list[Any]]:
    """Computes Tucker core and factors of a dense weight by ST-HOSVD, to a tolerance or ranks."""
    caps = None if rank is None else bounded(rank, x.shape, "mode")
    found = None if tol is None else tucker.from_dense(x, tol=tol)
    if found is not None and caps is not None and any(map(int.__gt__, found.ranks, caps)):
        caps, found = tuple(map(min, found.ranks, caps)), None
    found = tucker.from_dense(x, rank=caps, method="svd") if found is None else found
    return found.core, [np.asarray(u) for u in found.factors]


def set_tucker(new: Any, x: np.ndarray, tol: float | None, rank: Any) -> list[np.ndarray]:
    """Sets core and factors of a Tucker layer from a dense weight; returns its gates, all ones."""
    core, factors = truncated_modes(x, tol, rank)
    new.core = nnx.Param(jnp.asarray(core, new.param_dtype))
    new.factors = parameters(factors, new.param_dtype)
    return [np.ones(u.shape[1]) for u in factors]


def set_rest(new: Any, layer: Any, gates: Sequence[np.ndarray]) -> None:
    """Sets gates, bias and placement of a layer whose weight was converted from a dense one."""
    new.gates = parameters(gates, gate_dtype(new.param_dtype))
    if getattr(layer, "bias", None) is not None:
        new.bias = layer.bias.copy()
    settle(new, layer.embedding if isinstance(layer, nnx.Embed) else layer.kernel)


def parameters(arrays: Sequence[np.ndarray], dtype: Any) -> nnx.List:
    return nnx.List([nnx.Param(jnp.asarray(a, dtype)) for a in arrays])


def relative_error(made: Any, given: np.ndarray) -> float:
    """Computes the relative error of a weight as stored, made from one in double precision."""
    size = float(np.linalg.norm(given))
    return float(np.linalg.norm(double(made) - given)) / size if size else 0.0


def certify(
    new: Any, made: Any, layer: Any, given: np.ndarray, tol: float | None, modes: Sequence[int]
) -> Certificate:
    """Certifies a converted dense weight: measures its error, and keeps it as a `Certificate`.

    Args:
      made: its matrix.
      layer: the dense layer that it was made from.
      given: the matrix of that.
      tol: what was asked for.
      modes: into which that was folded.
    """
    error = relative_error(made, given)
    tucker_format, terms = hasattr(new, "core"), not hasattr(new, "cores")
    cuts = len(modes) if tucker_format else max(len(modes) - 1, 1)
    # Rounding is no error of truncation, and what stands in the padding is free.
    certain = error - 16 * len(modes) * float(jnp.finfo(made.dtype).eps)
    certificates[new] = Certificate(
        error=error,
        bound=tol if tol is not None and error <= tol else None,
        least=0.0
        if math.prod(modes) > given.size or (terms and not tucker_format)
        else max(certain, 0.0) / math.sqrt(cuts),
        ranks=new.ranks,
        numbers_before=parameter_count(layer),
        numbers=new.numbers,
    )
    return certificates[new]
