"""α–β cost model of communication: speeds of a device and its links, for the layout planner."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Speeds of a device and its links that the layout planner assumes: α–β cost model.

    Attributes:
      flops: multiplications and additions per second that the products of a step reach.
      bandwidth: β⁻¹, bytes per second that a device sends around a ring.
      latency: α, seconds per message.

    Raises:
      ValueError: a rate that is not positive, or a negative latency.

    Example:
      >>> from tensorjax import parallel
      >>> parallel.Machine(flops=4e14, bandwidth=1e11, latency=1e-5).bandwidth
      100000000000.0
    """

    flops: float = 200e12
    bandwidth: float = 100e9
    latency: float = 1e-6

    def __post_init__(self) -> None:
        """Raises ValueError unless the α–β model's rates are positive and its latency valid."""
        for name in ("flops", "bandwidth"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name}: expected a positive number, got {value!r}")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency: expected seconds >= 0, got {self.latency!r}")


def seconds_to_send(machine: Machine, sent: float, messages: float) -> float:
    """Returns seconds of communication by the α–β model, from bytes and number of messages."""
    return sent / machine.bandwidth + messages * machine.latency
