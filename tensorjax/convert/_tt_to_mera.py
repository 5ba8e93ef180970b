"""Conversion of tensor trains to MERAs, layer by layer, to a given relative error."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, _check, linalg, mera, tt
from tensorjax._cores.contractions import absorb, join, merge, times_mode, times_right
from tensorjax._cores.orthogonalization import left_qr, right_lq, right_orthogonal
from tensorjax._cores.overlaps import difference
from tensorjax._cores.scaling import balanced
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import single
from tensorjax._placement import placed
from tensorjax.convert import _disentangler_search
from tensorjax.convert._disentangler_search import Options, applied
from tensorjax.convert._reports import CutInfo, LayerInfo, MERAInfo
from tensorjax.convert._tt_to_tucker import tt_to_tucker
from tensorjax.mera import MERA, Layer, Wiring
from tensorjax.mera._to_dense_and_tt import exact_train
from tensorjax.tt import TT

Method = Literal["procrustes", "entropy", "identity", "qr"]
METHODS = get_args(Method)
Gauge = Literal["center", "left", "right"]
GAUGES = get_args(Gauge)
# Most entries of a dense top tensor: 1 GiB in double precision.
_LARGEST_TOP = 2**27
# Rows of the matrices up to which more than one thread of the BLAS costs more than it gives.
_ONE_THREAD = 2**10
# Times that the budget is cut when the measured error exceeds the tolerance.
_ATTEMPTS = 4


class _Budget:
    """Error budget of a MERA conversion: energy that the remaining truncations may discard."""

    def __init__(self, energy: float, count: int):
        self.left, self.count, self.spent = energy, count, 0.0

    def allowed(self) -> float:
        return max(self.left, 0.0) / max(self.count, 1)

    def copy(self) -> "_Budget":
        """Returns a copy of a MERA conversion's error budget."""
        other = _Budget(self.left, self.count)
        other.spent = self.spent
        return other

    def spend(self, energy: float) -> None:
        self.left -= energy
        self.spent += energy
        self.count -= 1


@placed
def tt_to_mera(
    t: TT,
    *,
    tol: float,
    arity: int | Sequence[int] = 2,
    layers: int | None = None,
    disentangle: Method = "procrustes",
    gauge: Gauge = "center",
    restarts: int = 8,
    iterations: int = 60,
    fallback: bool = True,
    key: jax.Array | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[MERA, MERAInfo]:
    """Converts a tensor train to an open-boundary MERA with relative error at most ``tol``.

    Layer by layer: at each cut between two blocks a disentangler lowers the rank of the bond, the
    bond is cut to that rank, each block gets an isometry from its leading singular vectors, and
    what is left is a shorter train. The last one, dense, is the top tensor.

    Args:
      t: TT of order d, at least the first arity.
      tol: ‖t − m‖ ≤ tol·‖t‖, guaranteed, for tol ≥ 10 eps: every truncation has a part of the
        budget tol²·‖t‖², what one leaves passes on to those after it, and the error is measured at
        the end.
      arity: sites per block, one int for all layers or one per layer from the bottom up. The last
        block may be shorter, and one site left alone is passed through.
      layers: how many; by default as many as lower the number of elements.
      disentangle: "procrustes" looks for the smallest rank of each bond that some disentangler
        reaches within the budget; "entropy" takes the disentangler of least Rényi entropy; "qr" is
        the plain conversion of the paper; "identity" has none.
      gauge: where the norm of the train sits when iterations look at a pair: on the pair
        ("center"), or "left" or "right" of it, as in programs that orthogonalise once.
      restarts: random starts of each search, all iterated at once.
      iterations: at most, of each phase of each search.
      fallback: whether to return the MERA without disentanglers where that is smaller.
      key: of the random starts; a fixed one if None.
      progress: called with a line of text after each cut.

    Returns:
      (MERA in the dtype of ``t``, `MERAInfo`).

    Raises:
      TypeError: ``t`` is no TT, or traced: the ranks depend on the data.
      ValueError: tol < 10 eps, a train too short for the arity, NaN or Inf, a dense top tensor
        that is too large (ask for more layers).

    Example:
      >>> import jax
      >>> from tensorjax import convert, mera
      >>> planted = mera.random(jax.random.key(0), (4,) * 6, 2, layers=1)
      >>> m, info = convert.tt_to_mera(mera.to_tt(planted), tol=1e-3)
      >>> m.size <= planted.size, info.error <= 1e-3
      (True, True)

    Source: Batselier, Cichocki, Wong, arXiv 1912.09775. Departures, ours: ranks are searched, not
    given; the budget covers the bonds too; disentanglers are found from several starts, among them
    a closed form, and finished by Gauss–Newton steps; see `tensorjax.convert._disentangler_search`.
    """
    single("t", t, TT, entries=True)
    _check.tol_or_rank(tol, None, t)
    tol = _check.tolerance(tol, t.dtype)
    for name, value, known in (("disentangle", disentangle, METHODS), ("gauge", gauge, GAUGES)):
        _check.choice(name, value, known)
    _check.flag("fallback", fallback)
    if progress is not None:
        _check.function("progress", progress)
    _check.integer("restarts", restarts, low=0)
    _check.integer("iterations", iterations, low=1)
    _check.finite("t", t)
    wirings = mera.wirings(t.order, arity, layers=layers)
    options = Options(disentangle, gauge, restarts, iterations, key, progress)
    start = time.perf_counter()
    source = _Source(t, tol)
    # Layers that were asked for are built even if they do not lower the number of elements.
    fixed = layers is not None or isinstance(arity, Sequence)
    with _blas_threads.one_thread(
        max(c.shape[1] * max(c.shape[::2]) for c in t.cores) <= _ONE_THREAD
    ):
        found, fell_back = _smaller(source, wirings, options, fixed, fallback)
    info = MERAInfo(
        layers=tuple(found.layers),
        error=found.error,
        tails=found.tails,
        size_tt=tt.round(t, tol=tol).size,
        size_tucker=tt_to_tucker(t, tol=tol)[1].size,
        size=found.m.size,
        disentangle=disentangle,
        fell_back=fell_back,
        seconds=time.perf_counter() - start,
    )
    return found.m, info


class _Source:
    """Train to convert to a MERA: right-orthogonal, of norm one, in double precision, in NumPy."""

    def __init__(self, t: TT, tol: float):
        self.t, self.tol, self.dtype = t, tol, t.dtype
        kind = np.result_type(linalg.factor_dtype(t.dtype), np.float64)
        given = [np.asarray(c).astype(kind, copy=False) for c in t.cores]
        # Evened out, for products of cores of opposite sizes would leave the range on the way.
        self.given = balanced(given, fit=(0, 0))
        self.cores, _ = right_orthogonal(self.given, scale=False)
        self.scale = float(np.abs(self.cores[0]).max()) or 1.0
        self.cores[0] = self.cores[0] / self.scale
        norm = float(np.linalg.norm(self.cores[0])) or 1.0
        self.scale *= norm
        self.cores[0] = self.cores[0] / norm
        # The top tensor will hold the norm.
        limits = jnp.finfo(t.dtype)
        fits = float(limits.smallest_normal) <= self.scale <= float(limits.max)
        if not fits and any(c.any() for c in self.cores[:1]):
            raise ValueError(
                f"t: expected a norm that {jnp.dtype(t.dtype).name} can hold, got {self.scale:.2g};"
                " scale the train first"
            )
        # Part of the tolerance pays for rounding the tensors to a narrower dtype.
        rounding = 3 * t.order * (linalg.epsilon(t.dtype) / 2) ** 2
        self.budget = max(tol**2 - rounding, tol**2 / 4)

    def error(self, m: MERA) -> float:
        """Computes the relative error ‖t − m‖ / ‖t‖ of a MERA that approximates the train."""
        kind = self.given[0].dtype
        found = exact_train(jax.tree.map(lambda x: np.asarray(x).astype(kind), m))
        unit = [self.given[0] / self.scale, *self.given[1:]]
        return float(np.ldexp(*difference(unit, [found.cores[0] / self.scale, *found.cores[1:]])))


class _Found(NamedTuple):
    m: MERA
    layers: list[LayerInfo]
    tails: float
    error: float


def _smaller(
    source: _Source, wirings: Sequence[Wiring], options: Options, fixed: bool, fallback: bool
) -> tuple[_Found, bool]:
    """Converts a train to a MERA with disentanglers and without; returns the smaller one."""
    found = _converted(source, wirings, options, fixed)
    assert found is not None
    if fallback and any(c.how != "identity" for x in found.layers for c in x.cuts):
        options = options._replace(method="identity", progress=None)
        plain = _converted(source, wirings, options, fixed, limit=found.m.size)
        if plain is not None:
            return plain, True
    return found, False


def _converted(
    source: _Source,
    wirings: Sequence[Wiring],
    options: Options,
    fixed: bool,
    limit: int | None = None,
) -> _Found | None:
    """Converts a train to a MERA, again with a smaller error budget if the error is too large."""
    budget = source.budget
    for attempt in range(_ATTEMPTS):
        # Truncations of bonds and of blocks are not orthogonal to each other, so their errors may
        # add up to a little more than the root of the sum of squares. The last attempt discards
        # nothing.
        budget = budget if attempt < _ATTEMPTS - 1 else 0.0
        found = _built(source, wirings, options, fixed, budget, limit)
        if found is None or found.error <= source.tol:
            return found
        budget *= 0.8 * min(1.0, source.tol / found.error) ** 2
    if limit is not None:
        return None
    raise ValueError(
        f"tol: expected more than the roundoff of this conversion, {found.error:.2g}, got "
        f"{source.tol:.2g}; ask for less accuracy, or use a wider dtype"
    )


def _built(
    source: _Source,
    wirings: Sequence[Wiring],
    options: Options,
    fixed: bool,
    budget: float,
    limit: int | None,
) -> _Found | None:
    purse = _Budget(budget, sum(2 * len(w.arities) - 1 for w in wirings))
    cores, layers, infos, stored = source.cores, [], [], 0
    for wiring in wirings:
        built = _layer(cores, wiring, purse.copy(), options._replace(layer=len(layers)))
        top = math.prod(c.shape[1] for c in built.cores)
        if layers and not fixed and built.info.size + top >= math.prod(c.shape[1] for c in cores):
            break
        layers.append(built.layer)
        infos.append(built.info)
        cores, purse = built.cores, built.purse
        stored += built.info.size
        if limit is not None and stored >= limit:
            return None
    entries = math.prod(c.shape[1] for c in cores)
    if limit is not None and stored + entries >= limit:
        return None
    if entries > _LARGEST_TOP:
        raise ValueError(
            f"layers: got {len(layers)}, whose dense top tensor would have {entries:,} entries; "
            "ask for more layers"
        )
    m = MERA._unchecked(tuple(layers), _dense(cores) * source.scale)
    with np.errstate(over="ignore"):
        m = jax.tree.map(lambda x: jax.device_put(x.astype(source.dtype)), m)
    return _Found(m, infos, purse.spent, source.error(m))


class _Built(NamedTuple):
    layer: Layer
    cores: Cores
    purse: _Budget
    info: LayerInfo


def _layer(cores: Cores, wiring: Wiring, purse: _Budget, options: Options) -> _Built:
    """Builds one MERA layer from a right-orthogonal train, and the train of its top legs."""
    start = time.perf_counter()
    before = _ranks(cores)
    options = options._replace(most=sum(c.size for c in cores))
    sites, us, cuts = _disentangled(cores, wiring, purse, options)
    ws, coarse, tails = _blocked(sites, wiring, purse)
    kept = [k for k, u in enumerate(us) if u is not None]
    layer = Layer._unchecked(
        tuple(us[k] for k in kept), tuple(ws), Wiring(wiring.arities, tuple(kept))
    )
    info = LayerInfo(
        ranks_before=before,
        ranks_after=_ranks(coarse),
        tops=tuple(w.shape[-1] for w in ws),
        cuts=tuple(cuts),
        tails=tuple(tails),
        size=sum(x.size for x in jax.tree.leaves(layer)),
        seconds=time.perf_counter() - start,
    )
    return _Built(layer, coarse, purse, info)


def _ranks(cores: Cores) -> tuple[int, ...]:
    return (*(c.shape[0] for c in cores), 1)


def _disentangled(
    cores: Cores, wiring: Wiring, purse: _Budget, options: Options
) -> tuple[Cores, list[Any], list[CutInfo]]:
    """Sweeps a train to the right in a conversion to MERA: disentangles and truncates bonds.

    Returns the cores, left-orthogonal but for the last, the disentanglers (None for the identity),
    and what was done.
    """
    pairs = {i: k for k, (i, _) in enumerate(wiring.pairs)}
    out: Cores = []
    us: list[Any] = [None] * len(pairs)
    cuts: list[CutInfo] = []
    core = cores[0]
    for i, following in enumerate(cores[1:]):
        if i not in pairs:
            q, r = left_qr(core)
            out.append(q)
            core = absorb(r, following)
            continue
        pair = _Pair(core, cores[i], following)
        left, core, us[pairs[i]], info = _cut(pair, purse, options._replace(cut=pairs[i]))
        out.append(left)
        cuts.append(info)
    return [*out, core], us, cuts


class _Pair(NamedTuple):
    core: Any  # (r1, n1, r), with the norm of the train
    raw: Any  # the same, right-orthogonal, before the norm came
    following: Any  # (r, n2, r2), right-orthogonal

    def joined(self, gauge: str) -> np.ndarray:
        """Contracts neighbouring cores to be converted to a MERA, in disentanglers' gauge."""
        first, second = self.raw if gauge == "left" else self.core, self.following
        if gauge == "right":
            first, r = left_qr(first)
            second = left_qr(absorb(r, second))[0]
        return join(first, second)


def _cut(pair: _Pair, purse: _Budget, options: Options) -> tuple[Any, Any, Any, CutInfo]:
    """Makes one cut of a conversion to a MERA: disentangles two sites and truncates their bond."""
    x = pair.joined("center")
    tail = purse.allowed()
    plain = _leading(x, tail)
    seen = x if options.gauge == "center" else pair.joined(options.gauge)
    found = _disentangler_search.find(x, seen, tail, plain.u.shape[1], options)
    basis, y, u = plain, x, None
    if found.u is not None:
        turned = applied(found.u, x)
        better = _leading(turned, tail)
        if better.u.shape[1] < plain.u.shape[1] or options.method == "qr":
            n = x.shape[1:3]
            basis, y, u = better, turned, linalg.adjoint(found.u).reshape(*n, *n)
    rank = basis.u.shape[1]
    left = basis.u.reshape(*x.shape[:2], rank)
    right = linalg.project(basis.u, _unfolded(y)).reshape(rank, *x.shape[2:])
    purse.spend(float(basis.discarded))
    how = "identity" if u is None else found.how
    info = CutInfo(
        plain.u.shape[1], rank, found.bound, float(basis.discarded), found.iterations, how
    )
    if options.progress is not None:
        options.progress(f"layer {options.layer}, cut {options.cut}: {info.plain}→{rank} ({how})")
    return left, right, u, info


def _unfolded(x: np.ndarray) -> np.ndarray:
    """Unfolds two cores joined for the conversion to MERA to a matrix (r₁ n₁) × (n₂ r₂)."""
    return x.reshape(x.shape[0] * x.shape[1], -1)


def _leading(x: np.ndarray, tail: float) -> linalg.Basis:
    return _basis(_unfolded(x), tail)


def _basis(matrix: np.ndarray, tail: float) -> linalg.Basis:
    # The norm is one: the tail is its own share.
    method = linalg.choose("auto", tail, matrix.dtype)
    return linalg.left_basis(matrix, tail=np.asarray(tail), method=method)


def _blocked(sites: Cores, wiring: Wiring, purse: _Budget) -> tuple[list[Any], Cores, list[float]]:
    """Sweeps a train to the left: splits off a MERA layer's isometries from the top legs' train."""
    ws: list[Any] = []
    coarse: Cores = []
    tails: list[float] = []
    carry = None
    for block in reversed(wiring.blocks):
        x = merge([sites[i] for i in block])
        x = x if carry is None else times_right(x, carry)
        below = [sites[i].shape[1] for i in block]
        n = x.shape[1]
        basis = _basis(x.transpose(1, 0, 2).reshape(n, -1), purse.allowed())
        u, discarded = basis.u, float(basis.discarded)
        if u.shape[1] == n:  # nothing is discarded, and any basis serves
            u, discarded = np.eye(n, dtype=x.dtype), 0.0
        purse.spend(discarded)
        ws.append(u.reshape(*below, -1))
        tails.append(discarded)
        x = times_mode(x, linalg.adjoint(u))
        if block[0] > 0:
            carry, x = right_lq(x)
        coarse.append(x)
    return ws[::-1], coarse[::-1], tails[::-1]


def _dense(cores: Cores) -> np.ndarray:
    return merge(cores).reshape([c.shape[1] for c in cores])
