"""Lower bound on the time of a training step, from the times of its parts."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """Times of the parts of a training step (compute, read, write, update), which bound its time.

    Attributes:
      compute: T_c, forward and backward pass of all layers.
      read, write: T_r and T_w, all reads and all writes, measured while the other goes on.
      update: T_o, the optimiser of all parameters.
      first: ℓ₀, reading and updating what the first layer needs.
      layer: f + b, forward and backward pass of one layer.

    Raises:
      ValueError: a time that is negative, NaN or infinite.

    Example:
      >>> from tensorjax import offload
      >>> times = offload.Times(compute=2.0, read=1.0, write=1.0, update=1.0, first=0.1, layer=0.2)
      >>> times.bound < times.after_backward
      True
    """

    compute: float
    read: float
    write: float
    update: float
    first: float
    layer: float

    def __post_init__(self) -> None:
        """Raises ValueError unless the times of a step's parts are finite and not negative."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name}: expected seconds >= 0, got {value!r}")

    @property
    def bound(self) -> float:
        """Lower bound P* on the time of a training step with any exact schedule, in seconds.

        P* = max(T_c + ℓ₀, max(T_r, T_w, T_o) + f + b), in the symbols of the attributes.

        The first layer cannot be computed before it has been updated, which waits for the last
        gradient; and what moves can overlap with everything but the first gradient's computation.

        Example:
          >>> from tensorjax import offload
          >>> times = offload.Times(
          ...     compute=1.0, read=1.0, write=0.5, update=0.4, first=0.1, layer=0.05
          ... )
          >>> times.bound, times.after_backward
          (1.1, 2.0)
        """
        other = max(self.read, self.write, self.update)
        return max(self.compute + self.first, other + self.layer)

    @property
    def after_backward(self) -> float:
        """Seconds of a step whose updates follow the backward pass: T_c + max(T_r, T_w, T_o)."""
        return self.compute + max(self.read, self.write, self.update)
