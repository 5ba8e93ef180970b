"""Schedule of the calls of a coordinate generator: only where moving coordinates pay.

Motion has a price: the generator itself, transport that couples all axes, right sides of higher
rank in turned coordinates, and a jump of the rates wherever it starts or stops. It pays where it
takes most of the normal component away, by which ranks rise. So motion starts only where it gains
much, goes on as long as the generator finds any, and where it does not pay the generator is asked
again after a pause, twice as long each time.

All this follows from the state alone, not from times that were measured: runs are reproducible.

Source: ours.
"""

from typing import NamedTuple

# Coordinates at rest start to move where what remains of the normal component is this share of what
# it is at rest, or less.
_START = 0.1
# Other than affine parts of a right side have higher ranks in turned coordinates, which do not part
# them by axes either. In two dimensions the cost of a train is linear in its rank, the only one: up
# to this rank more and dearer steps cost more than ranks do.
_FEW = 8
# Norm of v near an edge of the box, over the tolerance, at which the generator is asked in any
# case: its gauge keeps v inside.
_NEAR = 1e-2
# Longest pause between two questions, in steps.
_PAUSE = 32
# After so many moving steps in a row the next pause is short again.
_STEADY = 16


class Gate(NamedTuple):
    """Schedule of the time steps at which a new motion of the coordinates is computed.

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
        """Cost ratio below which coordinates start to move; None once they are moving."""
        return None if self.moving else _START

    def asks(self, shares: tuple[float, float], tol: float, dear: int = 0) -> bool:
        """Whether a new coordinate motion is computed at the next time step.

        Args:
          shares: of the norm of v at the edge of the box, and in the highest modes.
          tol: of the run.
          dear: TT-rank of v in two dimensions where the right side has other than affine parts,
            else 0.
        """
        edge, rough = shares
        # Unresolved waves fill the box, and no motion of it helps.
        near = edge**2 > rough**2 + (_NEAR * tol) ** 2
        few = 0 < dear <= _FEW and not self.moving
        return near or (self.wait == 0 and not few)

    def waited(self) -> "Gate":
        """Returns the schedule after a time step without a new coordinate motion."""
        return self._replace(wait=max(self.wait - 1, 0))

    def judged(self, guarded: bool) -> "Gate":
        """Returns the schedule after a new coordinate motion; pauses longer if it was rejected."""
        if guarded:
            pause = min(max(2 * self.pause, 1), _PAUSE)
            return Gate(wait=pause, pause=pause)
        moving = min(self.moving + 1, _STEADY)
        return Gate(pause=0 if moving == _STEADY else self.pause, moving=moving)
