"""Rounding of the sums of trains in a time step, with mass and moments restored."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._stepping import low_moments
from tensorjax.pde._stepping import mass as masses
from tensorjax.pde._stepping.outskirts import cleared
from tensorjax.pde._stepping.sketched_sums import Rounded, Runaway, Term, Train, rounded

# Errors of stages, and of slopes that are kept, in units of the tolerance of the step.
STAGE = 0.25
# Mass that rounding may lose before it is restored, in units of the tolerance; with `conserve=`,
# all of it is restored in every step.
_LOST = 5
# Share of that which each moment of a density may lack, where more than the mass is restored.
_LEFT = 0.2
# Where a moment lacks more than so many tolerances after that, and more than before the step, the
# step is rounded to a quarter of its tolerance, up to twice.
_LACKING, _FINER, _FINER_BY = 2, 2, 0.25
# Norm that clearing the outskirts may take from v in a step, in units of the tolerance.
CLEARED = 0.5
# A sum whose rank exceeds 2 times the largest of the last step plus 12 is treated as unstable.
_JUMP, _LEAP = 2, 12


def _largest(lost: np.ndarray) -> float:
    """Returns the largest loss of TT rounding among all moments but the mass."""
    return float(np.abs(lost[1:]).max(initial=0.0))


def _of(known: Sequence[tuple[Cores, np.ndarray]], cores: Cores) -> np.ndarray | None:
    """Returns the moments that are known of a train in a time step; None if none are."""
    return next((moments for c, moments in known if c is cores), None)


def unrestored(tol: float) -> float:
    """Returns the error that rounding in steps may leave in each moment of a density."""
    return _LEFT * _LOST * tol


class Trim:
    """Rounding of sums of trains within one time step, with rank guesses and mass correction.

    Rounding keeps ∫ v dy: what it has taken from v since the run began stays below 5 ``tol`` of the
    whole, for what is beyond is put back by `tensorjax.pde._stepping.mass.corrected`, unless that
    takes a change of more than ``tol``. Of densities so are means and covariances, below ``tol``,
    see `tensorjax.pde._stepping.low_moments`. Parts of a sum that were rounded before count as they
    were before.

    Args:
      tol: relative error of the step.
      cap: of the ranks of what the step returns, or None.
      guesses: ranks that every sum took in the last step, by name; updated.
      box: of the grid.
      lost: mass that v has lost by rounding, relative; updated.
      exact: whether all of it is put back at once.
      clears: whether v is zero where a step leaves less of it, see
        `tensorjax.pde._stepping.outskirts`.
      moments: what rounding keeps, the mass alone if None.
      lost_moments: those that v has lost, over its mass; None for nothing yet. Updated. Each is in
        units of the means and deviations of its step: under linear drift and constant noise the
        share of a loss in the covariance falls or stays as time goes on, while its raw value over a
        variance that contracts would grow: sums are about bounds. Of another number of moments, as
        where v has no positive variance for some steps, nothing is restored, and the record waits.

    Attributes:
      limit: of the ranks of all sums, well above those of the last step; None where there was none.

    Raises:
      Runaway: by a sum that passes the limit.
    """

    def __init__(
        self,
        tol: float,
        cap: int | None,
        guesses: dict[str, tuple[int, ...]],
        box: Any,
        lost: float = 0.0,
        exact: bool = False,
        clears: bool = True,
        moments: low_moments.Moments | None = None,
        lost_moments: np.ndarray | None = None,
    ):
        self.tol = tol
        self.clears = clears
        self.cap = cap
        self.guesses = guesses
        self.lost = lost
        self._most = 0.0 if exact else _LOST * tol
        self._box = box
        self._quadrature = masses.quadrature(box)
        self.at = low_moments.mass_alone(box) if moments is None else moments
        known = lost_moments is not None and len(lost_moments) == self.at.count
        self._summed: Any = lost_moments if known else np.zeros(self.at.count)
        waits = lost_moments is not None and len(lost_moments) > self.at.count
        self._waiting = lost_moments if waits else None
        # Of trains in this step: moments before they were rounded; of those made from them, what
        # rounding took.
        self._held: list[tuple[Cores, np.ndarray]] = []
        self._lost: list[tuple[Cores, np.ndarray]] = []
        ranks_known = [r for ranks in guesses.values() for r in ranks]
        self.limit = _JUMP * max(ranks_known) + _LEAP if ranks_known else None

    def __call__(
        self,
        name: str,
        terms: Sequence[Term],
        weights: Sequence[float],
        *,
        share: float = STAGE,
        scale: float | None = None,
    ) -> Rounded:
        """Rounds a sum of tensor trains to ``share`` of the time step's tolerance."""
        final = name == "v"
        tol = self.tol if final else share * self.tol
        cap = self.cap if final else None

        def at(tol: float) -> Rounded:
            ranks = self.guesses.get(name)
            return rounded(terms, weights, tol, ranks, cap=cap, scale=scale, limit=self.limit)

        out = at(tol)
        self.guesses[name] = out.ranks
        held = sum(w * self.moments(t) for w, t in zip(weights, terms, strict=True))
        held = np.broadcast_to(held, self.at.count)
        if final:
            return self._kept_at_higher_ranks(out, at, held)
        if name == "slope":  # it outlives the step
            most = tol * (out.norm if scale is None else scale)
            return self._corrected(out, float(held[0]), most)
        self._held.append((out.cores, held))
        return out

    def follow(self, before: Cores, after: Cores) -> None:
        """Records for a step's rounding that a train has the mass of the one it was made from."""
        held = _of(self._held, before)
        lost = _of(self._lost, before) if held is None else held - self.at.of_train(before)
        if lost is not None:
            self._lost.append((after, lost))

    def moments(self, term: Term) -> np.ndarray:
        """Computes the moments of a train plus those lost by earlier rounding in the step."""
        if not isinstance(term, Train):
            return self.at.of(term.whole)
        held = _of(self._held, term.cores) if term.whole is term else None
        if held is None:
            lost = _of(self._lost, term.cores)
            held = self.at.of(term.whole) + (0 if lost is None else lost)
            if term.whole is term:  # v is in the sum of every stage
                self._held.append((term.cores, held))
        return held

    def kept(self, out: Rounded, held: np.ndarray) -> Rounded:
        """Restores the moments of a step's rounded result, if rounding lost more than allowed.

        It is right-orthogonal but for its first core, and stays so. Its outskirts are cleared.

        Args:
          out: the result.
          held: moments that it had before it was rounded.
        """
        if self.clears:
            cores = cleared(out.cores, self._box, CLEARED * self.tol)
            out = out._replace(cores=cores, norm=float(np.linalg.norm(cores[0])))
        left = self.at.of_train(out.cores)
        if not (np.isfinite(left).all() and np.isfinite(held).all() and held[0] != 0):
            return out
        lost = self._summed + (held - left) / held[0]
        lost[0] = self.lost + (held[0] - left[0]) / held[0]
        out, lost = self._restored(out, left, lost, held[0])
        self.lost, self._summed = float(lost[0]), lost
        return out

    def _kept_at_higher_ranks(
        self, out: Rounded, at: Callable[[float], Rounded], held: np.ndarray
    ) -> Rounded:
        """Keeps the moments of a step's result, at higher TT-ranks where too few restore them.

        Ranks above the cap or the limit are no failure of the step, whose tolerance needs fewer.

        Args:
          out: the result, rounded to the tolerance.
          at: rounds it to another one.
          held: moments that it had before it was rounded.
        """
        before, tol = (self.lost, self._summed), self.tol
        kept = self.kept(out, held)
        for _ in range(_FINER):
            after = self.lost, self._summed
            lacks = _largest(self._summed)
            if not lacks > max(_LACKING * self.tol, _LEFT * self._most, _largest(before[1])):
                break
            tol *= _FINER_BY
            ranks = out.ranks
            try:
                out = at(tol)
            except Runaway:
                break
            if out.capped or out.ranks == ranks:
                break
            self.lost, self._summed = before
            finer = self.kept(out, held)
            if not _largest(self._summed) < lacks:
                self.lost, self._summed = after
                break
            kept, self.guesses["v"] = finer, out.ranks
        return kept

    @property
    def lost_moments(self) -> np.ndarray:
        """Moments that v has lost by rounding, over its mass, for the `Trim` of the next step."""
        return self._summed if self._waiting is None else self._waiting

    def _restored(
        self, out: Rounded, left: np.ndarray, lost: np.ndarray, mass: float
    ) -> tuple[Rounded, np.ndarray]:
        """Restores moments that rounding has lost; returns the train and what it still lacks."""
        if self.at.count > 1:
            if not np.abs(lost).max() > _LEFT * self._most:
                return out, lost
            target = left + lost * mass
            cores, found = low_moments.corrected(out.cores, self.at, target, self.tol, left)
            out = out._replace(cores=cores, norm=float(np.linalg.norm(cores[0])))
            left, lost = found, (target - found) / mass
        beyond = lost[0] - min(max(lost[0], -self._most), self._most)
        if not beyond:
            return out, lost
        found = self._corrected(out, left[0] + beyond * mass, self.tol * out.norm)
        return found, lost + (left - self.at.of_train(found.cores)) / mass

    def _corrected(self, out: Rounded, mass: float, allowed: float) -> Rounded:
        """Corrects a rounded train to a given mass, unless the change needed is too large."""
        found = None
        if np.isfinite(out.norm) and np.isfinite(mass):
            found = masses.corrected(out.cores, self._quadrature, mass)
        if found is None or not found.norm <= allowed:
            return out
        return out._replace(cores=found.cores, norm=float(np.linalg.norm(found.cores[0])))
