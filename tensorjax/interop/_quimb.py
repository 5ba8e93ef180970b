"""Conversion of TT and TTMatrix to and from quimb's matrix product states and operators."""

import itertools
import math
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax._cores.scaling import balanced
from tensorjax.interop._checks_and_imports import optional, single
from tensorjax.tt import TT, TTMatrix


def to_quimb(x: TT | TTMatrix) -> Any:
    """Converts a TT to quimb's MatrixProductState, or a TTMatrix to its MatrixProductOperator.

    Args:
      x: one train, with concrete arrays. Rows of a TTMatrix become quimb's upper ("k") indices.

    Returns:
      quimb.tensor.MatrixProductState or MatrixProductOperator, of NumPy arrays.

    Raises:
      TypeError: another format, or traced arrays. ValueError: a batch of trains.
      ModuleNotFoundError: quimb is not installed.

    Example:
      >>> from tensorjax import interop, tt
      >>> interop.to_quimb(tt.ones((2, 3, 4))).bond_sizes()
      [1, 1]

    Source: ours; the layout is that of quimb's documentation.
    """
    single(x)
    if not isinstance(x, TT | TTMatrix):
        raise TypeError(
            f"x: expected a TT or TTMatrix, got {type(x).__name__}; "
            "convert it by tucker.to_tt or mera.to_tt"
        )
    qtn = optional("quimb.tensor", "quimb")
    cores = [np.asarray(c) for c in x.cores]
    if cores[0].dtype.kind == "V":  # bfloat16, which quimb's linear algebra does not know
        cores = [c.astype(np.float32) for c in cores]
    if isinstance(x, TT):
        return qtn.MatrixProductState(_open_ends(cores), shape="lpr")
    return qtn.MatrixProductOperator(_open_ends(cores), shape="ludr")


def _open_ends(cores: list[np.ndarray]) -> list[np.ndarray]:
    """Drops the outer bonds of size one of a tensor train, as quimb expects."""
    first, last = cores[0], cores[-1]
    if len(cores) == 1:
        return [first[0, ..., 0]]
    return [first[0], *cores[1:-1], last[..., 0]]


def from_quimb(x: Any) -> TT | TTMatrix:
    """Converts quimb's MatrixProductState to a TT, or its MatrixProductOperator to a TTMatrix.

    Args:
      x: with open boundary; bonds may be missing (rank one) or several. Its ``exponent``, the
        prefactor that `equalize_norms_` takes out of the tensors, goes back into the cores.

    Returns:
      TT, or TTMatrix with quimb's upper ("k") indices as rows.

    Raises:
      TypeError: another object; arrays that NumPy cannot read, such as PyTorch's with gradients.
      ValueError: a ring; tensors beside those of the sites, as gates that are not contracted;
        bonds between sites that are no neighbours; sites without a tensor.
      ModuleNotFoundError: quimb is not installed.

    Example:
      >>> from tensorjax import interop, tt
      >>> interop.from_quimb(interop.to_quimb(tt.ones((2, 3))))
      TT(shape=(2, 3), ranks=(1, 1, 1), dtype=float32)

    Source: ours.
    """
    qtn = optional("quimb.tensor", "quimb")
    if isinstance(x, qtn.MatrixProductState):
        outer = [[x.site_ind(k)] for k in x.sites]
    elif isinstance(x, qtn.MatrixProductOperator):
        outer = [[x.upper_ind(k), x.lower_ind(k)] for k in x.sites]
    else:
        raise TypeError(
            "x: expected a MatrixProductState or MatrixProductOperator of quimb, got "
            f"{type(x).__name__}{_advice(x)}"
        )
    if getattr(x, "cyclic", False):
        raise ValueError("x: expected an open boundary, got a ring; open it in quimb first")
    tensors = _site_tensors(x, outer)
    bonds = [set(a.inds) & set(b.inds) for a, b in itertools.pairwise(tensors)]
    around = [set(), *bonds, set()]
    cores = []
    for k, tensor in enumerate(tensors):
        left, right = sorted(around[k]), sorted(around[k + 1])
        if sorted(tensor.inds) != sorted([*left, *outer[k], *right]):
            raise ValueError(
                f"x[{x.sites[k]}]: expected the indices {outer[k]} and bonds to its neighbours "
                f"alone, got {tensor.inds}; contract or compress it to a chain in quimb first"
            )
        data = np.asarray(_check.inexact(f"x[{x.sites[k]}]", tensor.data))
        data = data.transpose([tensor.inds.index(i) for i in (*left, *outer[k], *right)])
        sides = [math.prod(tensor.ind_size(i) for i in side) for side in (left, right)]
        cores.append(data.reshape(sides[0], *(tensor.ind_size(i) for i in outer[k]), sides[1]))
    cores = _times_power(cores, float(getattr(x, "exponent", 0.0) or 0.0))
    return (TT if cores[0].ndim == 3 else TTMatrix)(cores)


def _advice(x: Any) -> str:
    if hasattr(x, "tensor_map"):
        return "; bring the network into one of these forms in quimb, or pass its dense array"
    return ""


def _site_tensors(x: Any, outer: list[list[str]]) -> list[Any]:
    """Returns the tensor of every site of a quimb state; ValueError if it has other tensors."""
    if x.num_tensors != len(outer):
        raise ValueError(
            f"x: expected one tensor for each of {len(outer)} sites, got {x.num_tensors}; contract "
            "gates into the chain first, for example by gate_(…, contract='swap+split'), or "
            "compress it"
        )
    try:
        tensors = [x[k] for k in x.sites]
    except KeyError as error:
        tags = sorted(tag for t in x for tag in t.tags)
        raise ValueError(
            f"x: expected one tensor for each of the sites {tuple(x.sites)} that quimb names, got "
            f"tensors with the tags {tags}; number the sites from 0 on without gaps"
        ) from error
    for site, tensor, names in zip(x.sites, tensors, outer, strict=True):
        if not hasattr(tensor, "inds") or not set(names) <= set(tensor.inds):
            got = getattr(tensor, "inds", "several tensors")
            raise ValueError(f"x[{site}]: expected one tensor with the indices {names}, got {got}")
    return tensors


def _times_power(cores: list[np.ndarray], exponent: float) -> list[np.ndarray]:
    """Multiplies a tensor train by 10^exponent, which quimb stores apart from its tensors."""
    if exponent == 0:
        return cores
    if exponent == -math.inf:
        return [np.zeros_like(cores[0]), *cores[1:]]
    if not math.isfinite(exponent):
        raise ValueError(f"x: expected a finite exponent, got {exponent}; look for NaN or Inf in x")
    # In powers of two, which all cores share, for 10^exponent need not be in range.
    whole = math.floor(exponent * math.log2(10))
    rest = 2.0 ** (exponent * math.log2(10) - whole)
    *first, last = cores
    return balanced([*first, last * np.asarray(rest, last.dtype)], whole)
