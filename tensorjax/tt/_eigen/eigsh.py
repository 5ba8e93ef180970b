"""Eigenvalue solver `eigsh`: lowest eigenpairs of a Hermitian TT-matrix, by DMRG."""

import dataclasses
import functools
import math
import numbers
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores import scaling
from tensorjax._cores.ranks import rank_bounds
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tt._eigen.lowest_pairs_search import Check, Levels, find_levels
from tensorjax.tt._eigen.single_eigenpair import Search, Status, Sweep, widened
from tensorjax.tt._products.inner_products import distance_of_cores

# Worst last: the status of a search for several pairs is the worst of theirs.
_ORDER = ("converged", "energy", "max_rank", "stalled", "max_sweeps")
_ADVICE = {
    "energy": "the eigenvalue stayed within energy_tol over two sweeps, the residual is above tol: "
    "lower energy_tol, or leave it out, for better states",
    "incomplete": "these are eigenpairs, but there may be lower ones that were missed: ask "
    "for some pairs more than you need, or try another key",
    "max_rank": "the ranks allow no better state: raise max_rank (with sites=1 and x0, give x0 "
    "larger ranks or expand > 0), or ask for less accuracy",
    "stalled": "the residual stopped falling above tol: roundoff, or a local minimum; ask for less "
    "accuracy, try sites=2, another key or a better x0",
    "max_sweeps": "the sweeps did not suffice: raise max_sweeps, or go on from these trains as x0",
}

_CHECKS = {
    "exhaustive": "none, by Lanczos or a dense eigensolver on the whole space",
    "searched": "none found from fresh starts, which is no proof",
    "unchecked": "not searched",
    "unsure": "some may have been missed",
}


@dataclasses.dataclass(frozen=True)
class EigInfo:
    """Report of `eigsh`: statuses, residuals, ranks, sweeps and advice for all eigenpairs.

    Attributes:
      status: "converged", or the worst among the pairs: "energy" (``energy_tol`` ended the search
        before the residual was small), "max_rank" (the ranks were the limit),
        "stalled" (the residual stopped falling), "max_sweeps" (the budget ran out). "incomplete"
        where all pairs converged, but lower levels may have been missed (``check`` is "unsure").
      statuses: of each pair.
      check: how far it was checked that no lower level was missed. "exhaustive": by Lanczos, or a
        dense eigensolver, on all vectors of the space (up to 2^16 entries, 2^14 for k = 1).
        "searched": fresh starts in the complement of the pairs found nothing lower, which in
        spectra with many local minima is likely, but no proof. "unchecked": a single pair of a
        larger space, or pairs that did not converge. "unsure": searches still found lower levels,
        or did not end.
      residual: (k,) norms ‖A x − λ x‖, measured on the states found; |λ − exact| is no larger.
      bound: (k,) what ``tol`` asked of them.
      truncation: (k,) shares of ‖x‖² cut off in the last sweep.
      sweeps: for each pair.
      ranks: TT-ranks of each train.
      history: a `Sweep` after every sweep.
      seconds: time taken.

    Example:
      >>> from tensorjax import tt
      >>> values, states, info = tt.eigsh(tt.identity((2, 3)), k=2, tol=1e-4)
      >>> info.status, info.check, len(info.ranks)
      ('converged', 'exhaustive', 2)

    Source: ours.
    """

    status: Status
    statuses: tuple[Status, ...]
    check: Check
    residual: np.ndarray
    bound: np.ndarray
    truncation: np.ndarray
    sweeps: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    history: tuple[Sweep, ...]
    seconds: float

    @property
    def variance(self) -> np.ndarray:
        """Variances ⟨A²⟩ − ⟨A⟩² of the eigenpairs, (k,), which are the squared residuals."""
        return np.square(self.residual)

    @property
    def advice(self) -> str:
        """Advice, in words, on a search by `eigsh` that failed; empty if it succeeded."""
        return _ADVICE.get(self.status, "")

    def __str__(self) -> str:
        lines = [
            f"pair {j}: {status} in {sweeps} sweeps, residual {r:.2g} (asked {b:.2g}), TT-rank "
            f"{max(ranks)}"
            for j, (status, sweeps, r, b, ranks) in enumerate(
                zip(self.statuses, self.sweeps, self.residual, self.bound, self.ranks, strict=True)
            )
        ]
        return "\n".join(
            [*lines, f"lower levels: {_CHECKS[self.check]}", *filter(None, [self.advice])]
        )


@placed
def eigsh(
    A: TTMatrix,
    *,
    k: int = 1,
    tol: float,
    energy_tol: float | None = None,
    x0: TT | Sequence[TT] | None = None,
    max_rank: int | None = 256,
    sites: Literal[1, 2] = 2,
    expand: int | None = None,
    max_sweeps: int = 60,
    key: jax.Array | None = None,
    callback: Callable[[Sweep], Any] | None = None,
) -> tuple[jax.Array, list[TT], EigInfo]:
    """Computes the k lowest eigenpairs A x = λ x of a Hermitian TT-matrix, by DMRG.

    The energy ⟨x|A|x⟩ is lowered core by core (or two at a time), sweeping to and fro; ranks grow
    as the truncation, which follows the residual down, asks for. For each further state the found
    ones are deflated, A + 2‖A‖₂ Σ f fᴴ, which changes neither eigenvectors nor the other values, so
    that multiple eigenvalues come with as many vectors; what overlap is left is projected out. The
    residuals prove that these are eigenpairs. That no lower one was missed, DMRG cannot prove. So a
    block of states at once starts the search of the further pairs, and in the end the complement of
    all of them is searched for lower levels: on all vectors where the space has up to 2^16
    dimensions (2^14 for k = 1), else (for k > 1) from a fresh random block. ``info.check`` says
    which; in larger spaces a level that nothing leads to, as that of the projector on a random
    product state, is not found. The largest eigenpairs are those of −A. Generalised problems
    A x = λ B x, and eigenvalues inside of the spectrum, are not solved here.

    Args:
      A: TTMatrix with equal row and column modes, real symmetric or complex Hermitian.
      k: number of pairs.
      tol: ‖A x_j − λ_j x_j‖ ≤ tol · max(|λ_1|, …, |λ_j|) for each pair, measured on the result; or
        ≤ tol · ‖A‖₂ where these values are all zero to within that residual (zero modes).
        Where roundoff, 10 √d eps ‖A‖₂, forbids as much, it stands in for the right side. The
        eigenvalue itself is then off by no more than that, and as a rule by its square over the
        gap.
      energy_tol: ends the search of a pair, with status "energy", once two sweeps in a row have
        changed its value by at most energy_tol · max(|λ_1|, …, |λ_j|), though the residual is above
        ``tol`` still. Values converge as squares of residuals, so that this takes a fraction of the
        time where no accurate states are wanted; it bounds a change, not an error. None: not used.
      x0: start of the first pair, or a sequence of up to k; random where there is none.
      max_rank: of the trains; None for no limit.
      sites: 2 finds the ranks. 1 is cheaper where modes are large: it keeps the ranks of x0, or
        widens them, see ``expand``.
      expand: with one site, how many directions are added to every bond in each sweep, before
        truncation; None for 0 if there is an x0, and 8 otherwise.
      max_sweeps: for each pair; one there and one back are two.
      key: of the random start and the added directions; a fixed one if None.
      callback: called with a `Sweep` after each sweep of a single pair (not of a block).

    Returns:
      (k,) real eigenvalues in ascending order; a list of k TTs, of norm one and orthogonal to each
      other (to roundoff as a rule, to about ``tol`` always); and `EigInfo` with measured residuals,
      status and advice. Where the status is not "converged" or "energy", they are the best so
      far.

    Raises:
      TypeError: ``A`` or ``x0`` of the wrong kind, or traced: the ranks depend on the data.
      ValueError: A is not square or not Hermitian, NaN or Inf, x0 zero or of another shape, k
        larger than the space, tol below 10 eps, energy_tol not positive, options out of range.
      OverflowError: eigenvalues that the dtype cannot hold, large ones and small ones; not those
        that are zero to within roundoff of ‖A‖₂.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> x, z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, -1.0])
      >>> ising = tt.chain_operator(12, site=-z, bond=-np.kron(x, x))
      >>> values, states, info = tt.eigsh(ising, tol=1e-4)
      >>> print(f"{values[0]:.4f} {info.status}")
      -14.9260 converged

    Source: S. White, Phys. Rev. Lett. 69, 2863 (1992); U. Schollwöck, "The density-matrix
    renormalization group in the age of matrix product states", Ann. Phys. 326, 96 (2011), section
    6; expansion for one site: A. Gleis, J.-W. Li, J. von Delft, Phys. Rev. Lett. 130, 246402
    (2023). Departures, ours: the sum of the local residuals, which cost nothing, sets truncation,
    accuracy of the local Lanczos runs, and the end; blocks start the further pairs (the block
    tensor train of S. Dolgov et al., Comput. Phys. Commun. 185, 1207 (2014)), and missed levels are
    searched; the two-site residual of the expansion is
    sketched at random; in the first sweeps with two sites, the next eigenvectors of the local
    problems widen the bonds, which leads out of local minima; where max_rank is the limit, two
    sweeps of single sites end the search. All is done on the host in double precision, and nothing
    is compiled.
    """
    start = time.perf_counter()
    held = _checked_operator(A, tol)
    starts = _starts(A, x0, k)
    dtype = functools.reduce(np.promote_types, (t.dtype for t in starts), A.dtype)
    seed = _check.seed(key)
    if callback is not None:
        _check.function("callback", callback)
    history: list[Sweep] = []

    def report(sweep: Sweep) -> None:
        value, residual = held.unscaled([sweep.value, sweep.residual]).tolist()
        sweep = sweep._replace(value=value, residual=residual)
        history.append(sweep)
        if callback is not None:
            callback(sweep)

    search = Search(
        operator=[widened(c, np.result_type(c, dtype)) for c in held.cores],
        dtype=dtype,
        tol=_check.tolerance(tol, dtype),
        energy_tol=_energy_tol(energy_tol),
        limit=_limit(A, max_rank),
        sites=_check.integer("sites", sites, low=1, high=2),
        expand=None if expand is None else _check.integer("expand", expand, low=0),
        max_sweeps=_check.integer("max_sweeps", max_sweeps, low=1),
        rng=np.random.default_rng(seed),
        report=report,
    )
    levels = find_levels(search, [[widened(c, dtype) for c in t.cores] for t in starts], k)
    info = _info(levels, held, history, time.perf_counter() - start)
    return *_answer(search, held, levels), info


def _info(levels: Levels, held: "_Operator", history: list[Sweep], seconds: float) -> EigInfo:
    pairs = levels.pairs
    statuses: tuple[Status, ...] = tuple(p.status for p in pairs)
    worst = max(statuses, key=lambda s: _ORDER.index(s))
    return EigInfo(
        status="incomplete" if worst == "converged" and levels.check == "unsure" else worst,
        statuses=statuses,
        check=levels.check,
        residual=held.unscaled([p.residual for p in pairs]),
        bound=held.unscaled([p.bound for p in pairs]),
        truncation=np.array([p.truncation for p in pairs]),
        sweeps=tuple(p.sweeps for p in pairs),
        ranks=tuple((1, *(c.shape[2] for c in p.cores)) for p in pairs),
        history=tuple(history),
        seconds=seconds,
    )


def _answer(search: Search, held: "_Operator", levels: Levels) -> tuple[jax.Array, list[TT]]:
    pairs, real = levels.pairs, jnp.finfo(search.dtype)
    inside = np.array([p.value for p in pairs])
    with np.errstate(over="ignore", under="ignore"):
        found = held.unscaled(inside).astype(real.dtype)
    small = np.abs(found) < real.smallest_normal
    vanished = small & (np.abs(inside) > search.bound(0.0, levels.size, 0.0))
    for refused, remedy in ((~np.isfinite(found), "divide"), (vanished, "multiply")):
        if refused.any():
            raise OverflowError(
                f"A: {real.dtype} cannot hold its eigenvalues; {remedy} A by a number first"
            )
    values = jax.device_put(found)
    cores = (on_device([c.astype(search.dtype) for c in p.cores]) for p in pairs)
    return values, [TT._unchecked(tuple(c)) for c in cores]


# Arguments ---------------------------------------------------------------------------------------


class _Operator(NamedTuple):
    """Operator of `eigsh`: cores in double precision, and the power of two that they leave out."""

    cores: list[np.ndarray]
    exponent: int

    def unscaled(self, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """Multiplies eigenvalues or residuals of `eigsh` by the power that the cores leave out."""
        return linalg.scaled(np.asarray(values, np.float64), self.exponent)


def _in_range(cores: list[np.ndarray]) -> _Operator:
    """Scales the bonds of the operator of `eigsh` so that squares of its eigenvalues are held.

    By powers of two, which change no digit, whatever the sizes of the cores are: they say nothing
    of products of several cores, nor of terms whose sizes lie in opposite ways in them.
    """
    even, exponent = scaling.evened([c.reshape(len(c), -1, c.shape[-1]) for c in cores])
    shaped = [s.reshape(c.shape) for s, c in zip(even, cores, strict=True)]
    return _Operator(shaped, exponent)


def _checked_operator(a: Any, tol: Any) -> _Operator:
    single("A", a, TTMatrix, entries=True)
    _check.tol_or_rank(tol, None, a)
    if a.row_shape != a.col_shape:
        raise ValueError(
            f"A: expected a square operator with equal row and column modes, got rows "
            f"{a.row_shape} and columns {a.col_shape}"
        )
    _check.finite("A", a)
    held = _in_range([widened(c, a.dtype) for c in a.cores])
    square = held.cores
    cores = [c.reshape(len(c), -1, c.shape[-1]) for c in square]
    adjoint = [c.conj().swapaxes(1, 2).reshape(b.shape) for b, c in zip(cores, square, strict=True)]
    size = float(distance_of_cores(cores, [0 * c[:1, :, :1] for c in cores]))
    apart = float(distance_of_cores(cores, adjoint))
    if apart > linalg.epsilon(a.dtype) ** 0.5 * size:
        raise ValueError(
            f"A: expected a Hermitian operator, got ‖A − Aᴴ‖ = {apart / size:.2g} ‖A‖; "
            "take its Hermitian part (A + tt.conj(tt.transpose(A))) / 2, rounded"
        )
    return held


def _starts(a: TTMatrix, x0: Any, k: Any) -> list[TT]:
    size = math.prod(a.row_shape)
    if _check.integer("k", k, low=1) > size:
        raise ValueError(f"k: expected at most {size}, the size of A, got {k}")
    starts = [] if x0 is None else [x0] if isinstance(x0, TT) else list(x0)
    if len(starts) > k:
        raise ValueError(f"x0: expected at most k = {k} trains, got {len(starts)}")
    for t in starts:
        single("x0", t, TT)
        _check.tol_or_rank(0, None, t)
        if t.shape != a.col_shape:
            raise ValueError(f"x0: expected shape {a.col_shape}, got {t.shape}")
        _check.finite("x0", t)
        if any(not np.any(np.asarray(c)) for c in t.cores):
            raise ValueError("x0: expected a train other than zero; tt.random makes one")
    return starts


def _energy_tol(value: Any) -> float | None:
    if value is not None and not (isinstance(value, numbers.Real) and 0 < float(value) < math.inf):
        raise ValueError(f"energy_tol: expected a positive number or None, got {value!r}")
    return None if value is None else float(value)


def _limit(a: TTMatrix, max_rank: int | None) -> int:
    largest = max(rank_bounds(a.row_shape), default=1)
    return largest if max_rank is None else _check.integer("max_rank", max_rank, low=1)
