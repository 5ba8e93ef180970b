"""Internal data of the integrator between steps, saved with a state for an exact restart."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._integration.motion_gate import Gate
from tensorjax.pde._maps.coordinate_path import Moment


@dataclasses.dataclass
class Memory:
    """Integrator state beside the solution (dt, errors, slopes), saved for an exact restart.

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
      stiff: whether "auto" has gone over to exponential steps.
      gate: when the generator is asked, see `tensorjax.pde._integration.motion_gate`.
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
    gate: Gate = dataclasses.field(default_factory=Gate)

    def saved(self) -> dict[str, Any]:
        """Converts the integrator state to a dict of arrays, for a checkpoint."""
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
        """Rebuilds the integrator state from the dict of arrays of a checkpoint."""
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
            Gate(*(int(n) for n in saved.get("gate", Gate()))),
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
