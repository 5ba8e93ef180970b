"""Memory of a compiled program, in bytes per device, as XLA has laid it out."""

import dataclasses

from jax.stages import Compiled


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of a compiled program in bytes per device: arguments, temporary, outputs.

    Attributes:
      arguments: of its inputs.
      temporary: of all that lives between inputs and outputs.
      outputs: of its results.
      aliases: of results that take the place of inputs (donated buffers).

    Example:
      >>> from tensorjax import parallel
      >>> parallel.Memory(arguments=64, temporary=32, outputs=64, aliases=64).total
      96
    """

    arguments: int
    temporary: int
    outputs: int
    aliases: int

    @property
    def total(self) -> int:
        """Total bytes of a compiled program: arguments, temporary, outputs, less aliased ones."""
        return self.arguments + self.temporary + self.outputs - self.aliases


def memory(compiled: Compiled) -> Memory:
    """Returns a compiled program's memory, in bytes per device, as XLA has laid it out.

    The peak that XLA states is not used: on CPU it has been below the temporary bytes alone.

    Args:
      compiled: from ``jax.jit(f).lower(…).compile()``.

    Returns:
      `Memory`, in bytes of one device.

    Raises:
      ValueError: the backend does not report its memory.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from tensorjax import parallel
      >>> parallel.memory(jax.jit(lambda x: x + 1).lower(jnp.ones(8)).compile()).arguments
      32

    Source: ours; the sizes are those that XLA states.
    """
    found = compiled.memory_analysis()
    if found is None:
        raise ValueError("compiled: expected a backend that reports its memory, got None")
    return Memory(
        arguments=found.argument_size_in_bytes,
        temporary=found.temp_size_in_bytes,
        outputs=found.output_size_in_bytes,
        aliases=found.alias_size_in_bytes,
    )
