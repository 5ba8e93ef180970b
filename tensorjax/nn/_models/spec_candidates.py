"""Candidate specs of one layer: formats, factor shapes and ranks, with parameters and errors.

Errors come from the singular values of the unfoldings: a truncation to ranks r_k has a relative
error of at most (Σ_k tail_k(r_k))^{1/2}, where tail_k(r) is the share of the energy of unfolding k
beyond its r largest singular values (Oseledets, 2011, theorem 2.2; for Tucker: De Lathauwer, De
Moor, Vandewalle, 2000). The spectra of random weights say nothing of what a training will need:
`is_random` tells them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from tensorjax import _check
from tensorjax.nn._embeddings.embedding_base import fold
from tensorjax.nn._linear_layers import flat
from tensorjax.nn._mode_factors import factor, modes, paired_modes
from tensorjax.nn._models.stacked_layers import copies
from tensorjax.nn._specs import TT, LowRank, Spec, TTMatrix, Tucker
from tensorjax.nn._weight_conversion import concrete, double

Modes = tuple[int, ...]
# Squared truncation errors of a bond that candidates are made for: of flat spectra, as those of
# fresh weights, all ranks that compress leave large ones.
_ERRORS = np.concatenate([np.linspace(0.98, 0.1, 60, endpoint=False), np.geomspace(0.1, 1e-12, 55)])
# Unfoldings with a smaller side above this are not decomposed: it would take minutes.
_LARGEST = 2048
# Padding of a mode product beyond this share makes a fold not worth it.
_PADDING = 1.1
# A weight whose singular values beyond the first quarter hold this share of what those of a random
# one hold is taken for random.
_FLAT = 0.9
# Modes below this compress nothing.
_SMALLEST = 4


class Candidate(NamedTuple):
    """Candidate format and ranks of one tensorised layer, with parameter count and error bound.

    Attributes:
      spec: with shapes and ranks; None leaves the layer dense.
      numbers: parameters of the weight, gates included and bias not.
      error: −log of the share of the energy kept, as of truncations that are independent of one
        another; for small errors their squared relative error. Summed over layers it is that of
        their composition, so that no layer is left without ranks for the good of others.
      bound: of the squared relative error; it is 1 for all small ranks of trains with many bonds,
        and does not tell them apart.
    """

    spec: Spec | None
    numbers: int
    error: float
    bound: float


def candidates(layer: Any, spec: Spec | None, *, trained: bool = False) -> list[Candidate]:
    """Lists candidate specs for a dense layer: formats and ranks of least error at their size.

    Args:
      layer: `flax.nnx.Linear`, `flax.nnx.Conv` or `flax.nnx.Embed`, perhaps stacked.
      spec: whose format and shapes are kept; None allows all, and to stay dense.
      trained: whether a training follows that cuts ranks: then nothing is larger than dense.

    Raises:
      ValueError: no ranks can be chosen for the spec, or the weights are not finite.
    """
    weights, shape, fold_of_conv = _matrices(layer)
    embedding = isinstance(layer, nnx.Embed)
    tails = _Tails(weights, shape)
    found = [Candidate(None, math.prod(shape), 0.0, 0.0)] if spec is None else []
    if spec is None or isinstance(spec, LowRank):
        found += _low_rank(tails, shape, spec)
    folds = [fold_of_conv] if fold_of_conv else _folds(shape, spec, embedding)
    small = bool(fold_of_conv)
    # Of embeddings and convolutions TT-matrices and trains are the same.
    as_train = (TT, TTMatrix) if embedding or small else TT
    for rows, columns in folds:
        if spec is None or isinstance(spec, as_train):
            found += _trains(tails, rows, columns, spec, embedding)
        if not embedding and (
            isinstance(spec, Tucker) or (spec is None and (small or len(rows + columns) <= 4))
        ):
            found += _tuckers(tails, rows, columns, spec)
    if not embedding and not small and (spec is None or isinstance(spec, TTMatrix)):
        for rows, columns in _paired_folds(shape, spec):
            found += _trains(tails, rows, columns, spec, embedding, paired=True)
    if not found:
        raise ValueError(_no_candidate(spec, shape, embedding))
    if trained:
        found = [c for c in found if c.numbers <= math.prod(shape)] or found
    count = len(weights)
    return _front([c._replace(numbers=c.numbers * count) for c in found])


def _no_candidate(spec: Any, shape: tuple[int, int], embedding: bool) -> str:
    """Says why there are no candidates for a spec, and what to do."""
    if embedding and isinstance(spec, Tucker):
        return (
            "expected TT, TTMatrix or LowRank to choose the ranks of a dense embedding, got "
            f"{spec}; with a rank it can be made anew"
        )
    return (
        f"expected modes of a weight of {shape[0]:,} × {shape[1]:,} whose unfoldings have a side "
        f"of at most {_LARGEST:,}, to choose their ranks by singular values, got {spec}; give it a "
        'rank, other factors or another order, or choose by size with init="random"'
    )


def is_random(layer: Any) -> bool:
    """Whether a layer's weights look random, judged by singular values as candidates are."""
    weights, shape, _ = _matrices(flat(layer) if isinstance(layer, nnx.LinearGeneral) else layer)
    least = min(shape)
    # A longer side than that changes little.
    drawn = np.random.default_rng(0).standard_normal((least, min(max(shape), 16 * least)))
    share = _FLAT * _energy(drawn)[least // 4 :].sum() / np.sum(drawn**2)
    return all(_energy(w)[least // 4 :].sum() >= share * np.sum(w**2) for w in weights)


def error_bound(layer: Any, rank: int, order: int | None = None) -> float | None:
    """Bounds a candidate's squared relative error: a train in default shapes for a dense layer.

    Args:
      layer: as of `candidates`, or `flax.nnx.LinearGeneral`; linear ones become TT-matrices.
      rank: of all bonds.
      order: of a TT-matrix, as its spec has it.

    Returns:
      The bound; None where an unfolding is too large to decompose.
    """
    layer = flat(layer) if isinstance(layer, nnx.LinearGeneral) else layer
    weights, shape, fold_of_conv = _matrices(layer)
    embedding = isinstance(layer, nnx.Embed)
    linear = paired_modes(shape, (None, None), order)
    rows, columns = fold_of_conv or (fold(*shape, None, None, None) if embedding else linear)
    _, bonds = _bonds(_Tails(weights, shape), rows, columns, not fold_of_conv, embedding)
    if bonds is None:
        return None
    return _errors(bonds, [min(rank, len(tail) - 1) for tail in bonds])[1]


def _matrices(layer: Any) -> tuple[list[np.ndarray], tuple[int, int], Any]:
    """Returns a dense layer's weights as matrices, one for each copy of a stack, for candidates.

    Returns:
      (the weights, their shape, modes of a convolution's rows and columns or None).
    """
    singles = copies(layer)
    name = "embedding" if isinstance(layer, nnx.Embed) else "kernel"
    shape = getattr(singles[0], name).shape
    weights = [double(concrete(getattr(one, name))) for one in singles]
    _check.finite(f"layer.{name}", weights)
    if not isinstance(layer, nnx.Conv):
        return weights, shape, None
    *window, channels, outputs = shape  # channels, window | channels, as in the layers' kernels
    fold_of_conv = (channels, *window), (outputs,)
    shape = (math.prod(fold_of_conv[0]), outputs)
    return [np.moveaxis(w, -2, 0).reshape(shape) for w in weights], shape, fold_of_conv


class _Tails:
    """Truncation errors of unfoldings of a layer's weight by rank, for candidates; cached."""

    def __init__(self, weights: Sequence[np.ndarray], shape: tuple[int, int]):
        self.weights = [w / np.linalg.norm(w) for w in weights if w.any()]
        self.shape = shape
        self.found: dict[Any, np.ndarray] = {}

    def of(self, sides: tuple[int, int], key: Any, unfold: Callable[..., Any], size: Modes) -> Any:
        """Returns squared truncation errors of one unfolding at ranks 0, 1, 2, …, for candidates.

        Args:
          sides: rows and columns of the weight, padded.
          key: by which the unfolding is known.
          unfold: makes it of the padded weight.
          size: its rows and columns.
        """
        if key not in self.found:
            n = min(size)
            energy = 1 / np.arange(1, n + 1)  # of zeros
            if self.weights:
                energy = np.mean([_energy(unfold(self._padded(w, sides))) for w in self.weights], 0)
            energy = np.maximum(energy, 0) / energy.sum()
            self.found[key] = np.append(np.cumsum(energy[::-1])[::-1], 0.0)
        return self.found[key]

    def _padded(self, weight: np.ndarray, sides: tuple[int, int]) -> np.ndarray:
        return np.pad(weight, [(0, n - m) for n, m in zip(sides, weight.shape, strict=True)])


def _energy(matrix: np.ndarray) -> np.ndarray:
    """Computes squared singular values, largest first, to predict candidates' truncation errors."""
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    return np.maximum(np.linalg.eigvalsh(matrix @ matrix.conj().T)[::-1], 0)


def _low_rank(tails: _Tails, shape: tuple[int, int], spec: Any) -> Iterator[Candidate]:
    n, m = shape
    tail = tails.of(shape, ("cut", 1, n, m), lambda w: w, shape)
    for rank in range(1, len(tail)):
        made = LowRank(rank, **({} if spec is None else {"init": spec.init}))
        yield Candidate(made, rank * (n + m + 1), *_errors([tail], [rank]))


def _folds(shape: tuple[int, int], spec: Any, embedding: bool) -> list[tuple[Modes, Modes]]:
    """Lists candidate shapes of a layer: factorisations of its rows and columns into modes."""
    n, m = shape
    if isinstance(spec, LowRank):
        return []
    if embedding:
        if spec is not None and (spec.num_shape or spec.feature_shape or spec.order):
            return [fold(n, m, spec.num_shape, spec.feature_shape, spec.order)]
        pairs = [fold(n, m, None, None, order) for order in (2, 3, 4)]
        return [p for p in pairs if _fits(p[0], n) and _fits(p[1], m)]
    given = spec is not None and (spec.in_shape or spec.out_shape or spec.order)
    # As layers do where they choose: the largest modes at both ends.
    usual = (
        modes(n, spec and spec.in_shape, spec and spec.order, "in_shape"),
        modes(m, spec and spec.out_shape, spec and spec.order, "out_shape"),
    )
    usual = (usual[0], usual[1] if spec is not None and spec.out_shape else usual[1][::-1])
    if given:
        return [usual]
    orders = [(p, q) for p in (1, 2, 3) for q in (1, 2, 3)]
    found = [(factor(n, p), factor(m, q)[::-1]) for p, q in orders]
    good = [f for f in found if _fits(f[0], n) and _fits(f[1], m) and len(f[0] + f[1]) > 2]
    return list(dict.fromkeys([usual, *good]))


def _paired_folds(shape: tuple[int, int], spec: Any) -> list[tuple[Modes, Modes]]:
    """Lists candidate shapes of a TT-matrix: rows and columns factorised into paired modes."""
    n, m = shape
    if spec is not None and (spec.in_shape or spec.out_shape or spec.order):
        return [paired_modes(shape, (spec.in_shape, spec.out_shape), spec.order)]
    found = [paired_modes(shape, (None, None), order) for order in (None, 2, 3)]
    good = [
        (rows, columns)
        for rows, columns in found
        if math.prod((*rows, *columns)) <= _PADDING * n * m
        and min(a * b for a, b in zip(rows, columns, strict=True)) >= _SMALLEST
    ]
    return list(dict.fromkeys(good or ([] if spec is None else found[:1])))


def _fits(sizes: Modes, n: int) -> bool:
    return math.prod(sizes) <= _PADDING * n and (len(sizes) == 1 or min(sizes) >= _SMALLEST)


def _trains(
    tails: _Tails, rows: Modes, columns: Modes, spec: Any, embedding: bool, paired: bool = False
) -> Iterator[Candidate]:
    """Yields tensor-train candidates for one factorisation into modes: one per error tolerance.

    Args:
      paired: whether the train is a TT-matrix, as that of an embedding is in any case.
    """
    kind = type(spec) if spec is not None else (TTMatrix if paired else TT)
    sizes, bonds = _bonds(tails, rows, columns, paired, embedding)
    if bonds is None:
        return
    options: dict[str, Any] = {} if spec is None else _kept(spec)
    names = ("num_shape", "feature_shape") if embedding else ("in_shape", "out_shape")
    for error in _ERRORS:
        ranks = _ranks(bonds, error, sizes)
        shapes: dict[str, Any] = dict(zip(names, (rows, columns), strict=True))
        made = kind(ranks or 1, **options | shapes)
        full = (1, *ranks, 1)
        numbers = sum(full[k] * n * full[k + 1] for k, n in enumerate(sizes)) + sum(ranks)
        yield Candidate(made, numbers, *_errors(bonds, ranks))


def _bonds(
    tails: _Tails, rows: Modes, columns: Modes, paired: bool, embedding: bool
) -> tuple[Modes, list[np.ndarray] | None]:
    """Computes a candidate train's mode sizes, and squared truncation errors of its bonds by rank.

    Returns:
      (mode sizes; errors of each bond, or None where an unfolding is too large to decompose).
    """
    sides = (math.prod(rows), math.prod(columns))
    paired |= embedding
    if paired:
        order = len(rows)
        axes = [axis for k in range(order) for axis in (k, order + k)]
        sizes = tuple(m * n for m, n in zip(rows, columns, strict=True))
    else:
        axes, sizes = list(range(len(rows + columns))), rows + columns
    bonds = []
    for k in range(1, len(sizes)):
        left, right = math.prod(sizes[:k]), math.prod(sizes[k:])
        if min(left, right) > _LARGEST:
            return sizes, None
        whole = paired and (rows, columns, k)  # of linear layers the cut alone matters
        key = ("cut", *(whole or (left,)), *sides) if whole or left != sides[0] else (
            "cut", 1, *sides
        )  # fmt: skip
        bonds.append(
            tails.of(
                sides,
                key,
                lambda w, left=left: w.reshape(*rows, *columns).transpose(axes).reshape(left, -1),
                (left, right),
            )
        )
    return sizes, bonds


def _ranks(bonds: Sequence[np.ndarray], error: float, sizes: Modes) -> Modes:
    """Returns a candidate's least TT-ranks of squared truncation error ≤ ``error`` per bond."""
    ranks = [max(1, int(np.argmax(tail <= error))) for tail in bonds]
    for k in range(len(ranks)):
        ranks[k] = min(ranks[k], (ranks[k - 1] if k else 1) * sizes[k])
    for k in reversed(range(len(ranks))):
        after = ranks[k + 1] if k + 1 < len(ranks) else 1
        ranks[k] = min(ranks[k], after * sizes[k + 1])
    return tuple(ranks)


def _tuckers(tails: _Tails, rows: Modes, columns: Modes, spec: Any) -> Iterator[Candidate]:
    sides, sizes = (math.prod(rows), math.prod(columns)), rows + columns
    if max(sizes) > _LARGEST:
        return
    each = [
        tails.of(
            sides,
            ("mode", k, rows, columns),
            lambda w, k=k, n=n: np.moveaxis(w.reshape(sizes), k, 0).reshape(n, -1),
            (n, math.prod(sizes) // n),
        )
        for k, n in enumerate(sizes)
    ]
    options: dict[str, Any] = {} if spec is None else _kept(spec)
    for error in _ERRORS:
        ranks = tuple(max(1, int(np.argmax(tail <= error))) for tail in each)
        numbers = math.prod(ranks) + sum((n + 1) * r for n, r in zip(sizes, ranks, strict=True))
        made = Tucker(ranks, **options, in_shape=rows, out_shape=columns)
        yield Candidate(made, numbers, *_errors(each, ranks))


def _errors(tails: Sequence[np.ndarray], ranks: Sequence[int]) -> tuple[float, float]:
    """Returns error and error bound of a candidate layer from its discarded singular values."""
    lost = [float(tail[r]) for tail, r in zip(tails, ranks, strict=True)]
    return -sum(math.log1p(-min(x, 1 - 1e-12)) for x in lost), min(sum(lost), 1.0)


def _kept(spec: Any) -> dict[str, Any]:
    """Returns options that all candidates have in common: those other than ranks and shapes."""
    return {
        name: value
        for name, value in vars(spec).items()
        if name not in ("rank", "order", "in_shape", "out_shape", "num_shape", "feature_shape")
    }


def _front(found: Sequence[Candidate]) -> list[Candidate]:
    """Selects the Pareto front of candidate layer formats in size and error."""
    front: list[Candidate] = []
    for new in sorted(found, key=lambda c: (c.numbers, c.error)):
        if not front or new.error < front[-1].error:
            front.append(new)
    return front
