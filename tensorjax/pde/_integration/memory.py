"""Internal data of the integrator between steps, saved with a state for an exact restart.

With the schedule by which a coordinate generator is asked, only where moving coordinates pay.
Motion has a price: the generator itself, transport that couples all axes, right sides of higher
rank in turned coordinates, and a jump of the rates wherever it starts or stops. It pays where it
takes most of the normal component away, by which ranks rise. So motion starts only where it gains
much, goes on as long as the generator finds any, and where it does not pay the generator is asked
again after a pause, twice as long each time.

All this follows from the state alone, not from times that were measured: runs are reproducible.

Source: ours.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._maps.coordinate_path import Moment

# Coordinates at rest start to move where what remains of the normal component is this share of what
# it is at rest, or less.
_START = 0.1
# Other than affine parts of a right side have higher ranks in turned coordinates, which do not part
# them by axes either. In two dimensions the cost of a train is linear in its rank, the only one: up
# to this rank more and dearer steps cost more than ranks do.
_FEW_RANKS = 8
# Norm of v near an edge of the box, over the tolerance, at which the generator is asked in any
# case: its gauge keeps v inside.
_NEAR = 1e-2
# Longest pause between two questions, in steps.
_PAUSE = 32
# After so many moving steps in a row the next pause is short again.
_STEADY = 16


class Gate(NamedTuple):
    """Memory of the steps at which a new motion of the coordinates is computed.

    Attributes:
      wait: steps without a question, from the next one on.
      pause: length of the last pause, in steps.
      moving: moving steps in a row, up to the last one.
    """

    wait: int = 0
    pause: int = 0
    moving: int = 0

    @property
    def gain(self) -> float | None:
        """Cost ratio in the integrator's memory below which coordinates start to move, or None."""
        return None if self.moving else _START

    def asks(self, shares: tuple[float, float], tol: float, dear: int = 0) -> bool:
        """Whether the integrator's memory asks for a new coordinate motion at the next step.

        Args:
          shares: of the norm of v at the edge of the box, and in the highest modes.
          tol: of the run.
          dear: TT-rank of v in two dimensions where the right side has other than affine parts,
            else 0.
        """
        edge, rough = shares
        # Unresolved waves fill the box, and no motion of it helps.
        near = edge**2 > rough**2 + (_NEAR * tol) ** 2
        few = 0 < dear <= _FEW_RANKS and not self.moving
        return near or (self.wait == 0 and not few)

    def waited(self) -> "Gate":
        """Returns the memory of coordinate motions after a step without a new one."""
        return self._replace(wait=max(self.wait - 1, 0))

    def judged(self, guarded: bool) -> "Gate":
        """Returns the memory of coordinate motions after a new one; longer pause if rejected."""
        if guarded:
            pause = min(max(2 * self.pause, 1), _PAUSE)
            return Gate(wait=pause, pause=pause)
        moving = min(self.moving + 1, _STEADY)
        return Gate(pause=0 if moving == _STEADY else self.pause, moving=moving)


@dataclasses.dataclass
class Memory:
    """Memory of the integrator beside the solution (dt, errors, slopes), for an exact restart.

    Attributes:
      v: the cores, in double precision.
      moments: motions that the generator returned at the last times, the newest last.
      slopes: (t, rate) of the last steps of a multistep method, the newest last.
      guesses: ranks that each sum of a step took, by its name.
      dt: of the next step.
      errors: scaled errors of the last accepted steps, the newest first.
      steps: accepted so far.
      mass: ∫ u dx at the start.
      lost: mass that v has lost by rounding, relative.
      lost_moments: the same of the moments in `tensorjax.pde._stepping.low_moments`; or None.
      moment_errors: of means and covariances, see `tensorjax.pde._integration.moment_errors`; or
        None.
      start_errors: what the points have missed of the initial state, axis by axis; or None.
      stiff: whether "auto" has gone over to exponential steps.
      gate: when the generator is asked, see `Gate`.
    """

    v: Cores
    moments: list[Moment]
    slopes: list[tuple[float, Cores]]
    guesses: dict[str, tuple[int, ...]]
    dt: float
    errors: tuple[float, ...]
    steps: int
    mass: float
    lost: float = 0.0
    lost_moments: Any = None
    stiff: bool = False
    moment_errors: Any = None
    gate: Gate = dataclasses.field(default_factory=Gate)
    start_errors: Any = None

    def saved(self) -> dict[str, Any]:
        """Converts the memory between steps to a dict of arrays."""
        out: dict[str, Any] = {
            "dt": np.asarray(self.dt),
            "steps": np.asarray(self.steps),
            "mass": np.asarray(self.mass),
            "lost": np.asarray(self.lost),
            "stiff": np.asarray(self.stiff),
            "gate": np.asarray(self.gate),
        }
        if self.lost_moments is not None:
            out["lost moments"] = np.asarray(self.lost_moments)
        if self.moment_errors is not None:
            out["moment errors"] = np.asarray(self.moment_errors)
        if self.start_errors is not None:
            out["start errors"] = np.asarray(self.start_errors)
        _put(out, "v", self.v)
        for i, m in enumerate(self.moments):
            _put(out, f"moment {i}", [np.asarray(m.t), m.sigma, m.beta])
        for i, (t, cores) in enumerate(self.slopes):
            _put(out, f"slope {i}", [np.asarray(t), *cores])
        for name, ranks in self.guesses.items():
            if ranks:
                out[f"ranks of {name}"] = np.asarray(ranks)
        if self.errors:
            out["errors"] = np.asarray(self.errors)
        return out

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> "Memory":
        """Rebuilds the integrator's memory from the dict of arrays of a checkpoint."""
        moments = [Moment(float(t), s, b) for t, s, b in _each(saved, "moment")]
        slopes = [(float(t), list(cores)) for t, *cores in _each(saved, "slope")]
        guesses = {
            name.removeprefix("ranks of "): tuple(int(r) for r in ranks)
            for name, ranks in saved.items()
            if name.startswith("ranks of ")
        }
        return cls(
            _get(saved, "v"),
            moments,
            slopes,
            guesses,
            float(saved["dt"]),
            tuple(float(e) for e in saved.get("errors", ())),
            int(saved["steps"]),
            float(saved["mass"]),
            float(saved.get("lost", 0.0)),
            np.asarray(saved["lost moments"]) if "lost moments" in saved else None,
            bool(saved.get("stiff", False)),
            np.asarray(saved["moment errors"]) if "moment errors" in saved else None,
            Gate(*(int(n) for n in saved.get("gate", Gate()))),
            np.asarray(saved["start errors"]) if "start errors" in saved else None,
        )


def _put(out: dict[str, Any], name: str, arrays: Sequence[Any]) -> None:
    for k, a in enumerate(arrays):
        out[f"{name}, {k}"] = np.asarray(a)


def _get(saved: dict[str, Any], name: str) -> list[Any]:
    out = []
    while (key := f"{name}, {len(out)}") in saved:
        out.append(np.asarray(saved[key]))
    return out


def _each(saved: dict[str, Any], name: str) -> list[list[Any]]:
    out = []
    while found := _get(saved, f"{name} {len(out)}"):
        out.append(found)
    return out
