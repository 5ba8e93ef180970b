"""Communication volume of a compiled program, read from its HLO, and its memory on a device."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

from jax.stages import Compiled

_KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
_BITS = re.compile(r"[a-z]+(\d+)")
_ARRAY = re.compile(r"\b(pred|token|[a-z]{1,4}\d[\w]*)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*)$")
_OPERATION = re.compile(r"[\s)}\]]([a-z][a-z\-]*)\(")
_CALLED = re.compile(r"(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":(\{[^}]*\})')
_GROUPS = re.compile(r"replica_groups=\{(\{[^}]*\})")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
# The order of the devices says which of them meet, not how many.
_NAMED = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((?:[^()]|\([^()]*\))*\))? ?\{([^}]*)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that each device sends in one run of a compiled program, by kind of collective.

    Attributes:
      bytes: of each kind of collective ("all-gather", …) that there is.
      counts: how often each kind runs.

    Example:
      >>> from tensorjax import parallel
      >>> parallel.Traffic({"all-gather": 512.0}, {"all-gather": 2}).total
      512.0
    """

    bytes: Mapping[str, float]
    counts: Mapping[str, int]

    @property
    def total(self) -> float:
        """Total bytes that each device sends in a compiled program, over all kinds."""
        return sum(self.bytes.values())

    def __str__(self) -> str:
        """Formats the bytes that a compiled program sends as a table, one line per collective."""
        lines = [f"{kind:20} {self.counts[kind]:6} {n:16,.0f}" for kind, n in self.bytes.items()]
        return "\n".join([f"{'collective':20} {'runs':>6} {'bytes/device':>16}", *lines])


def traffic(compiled: Compiled | str) -> Traffic:
    """Counts the bytes that each device sends in one run of a compiled program, from its HLO.

    Counted are ring algorithms, with p devices in a group:

      - all-gather: (p − 1)/p of its output;
      - reduce-scatter, all-to-all: (p − 1)/p of its input;
      - all-reduce: 2 (p − 1)/p of its input, a reduce-scatter and an all-gather;
      - collective-permute, collective-broadcast: its input, unless no device sends to another.

    What a loop contains counts as often as the loop runs; of the branches of a conditional, that
    one counts which sends most.

    Args:
      compiled: from ``jax.jit(f).lower(…).compile()``, or its HLO as text.

    Returns:
      `Traffic`, in bytes that one device sends.

    Raises:
      ValueError: a loop with collectives in it whose number of rounds is not in the HLO, or a
        collective whose groups of devices are not.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from tensorjax import parallel
      >>> parallel.traffic(jax.jit(lambda x: x + 1).lower(jnp.ones(8)).compile()).total
      0

    Source: ours; the ring all-reduce is that of Patarasuk, Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69 (2009).
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text()
    entry, computations = _computations(str(text))
    total = _visit(entry, computations, {})
    kinds = sorted(kind for kind in total if total[kind][0])
    return Traffic(
        bytes={kind: total[kind][1] for kind in kinds},
        counts={kind: int(total[kind][0]) for kind in kinds},
    )


_Found = dict[str, tuple[float, float]]  # kind: (runs, bytes)


def _computations(text: str) -> tuple[str, dict[str, list[str]]]:
    """Parses HLO text to the entry computation's name and each computation's instructions."""
    computations: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head and not line.startswith("HloModule"):
            lines = computations.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif instruction := _INSTRUCTION.match(line):
            lines.append(instruction[1])
    if not entry:
        raise ValueError("compiled: expected HLO with an ENTRY computation, got none")
    return entry, computations


def _visit(name: str, computations: Mapping[str, list[str]], known: dict[str, _Found]) -> _Found:
    """Counts runs and bytes of a compiled program's collectives in an HLO computation."""
    if name not in known:
        lines = computations.get(name, ())
        known[name] = _added([_instruction(line, computations, known) for line in lines])
    return known[name]


def _added(parts: list[_Found]) -> _Found:
    total: _Found = {}
    for part in parts:
        for kind, (runs, sent) in part.items():
            before = total.get(kind, (0.0, 0.0))
            total[kind] = (before[0] + runs, before[1] + sent)
    return total


def _instruction(
    line: str, computations: Mapping[str, list[str]], known: dict[str, _Found]
) -> _Found:
    """Counts runs and bytes of the collectives of one HLO instruction and what it calls."""
    line = line.partition(", metadata=")[0] + " " + "".join(_TRIPS.findall(line)[:1])
    operation = _OPERATION.search(" " + line)
    name = operation[1] if operation else ""
    base = name.removesuffix("-start")
    if base in _KINDS:
        sent = _sent(base, name != base, line)
        return {base: (1.0, sent)} if sent else {}
    if name.endswith(("-done", "-update")):
        return {}
    if branches := _BRANCHES.search(line):
        names = [branch.strip().lstrip("%") for branch in branches[1].split(",")]
        return _most(_visit(branch, computations, known) for branch in names)
    called = [_visit(each, computations, known) for each in _CALLED.findall(line)]
    if name == "conditional":
        return _most(iter(called))
    found = _added(called)
    if name != "while" or not found:
        return found
    rounds = _rounds(line)
    return {kind: (runs * rounds, sent * rounds) for kind, (runs, sent) in found.items()}


def _most(branches: Iterator[_Found]) -> _Found:
    return max(branches, key=lambda found: sum(sent for _, sent in found.values()))


def _rounds(line: str) -> int:
    found = re.search(r'\{"n":"(\d+)"\}', line)
    if not found:
        raise ValueError(
            "compiled: expected the number of rounds of every loop with collectives in it, got a "
            "while loop without one; use jax.lax.scan, or fori_loop with constant bounds"
        )
    return int(found[1])


def _sent(kind: str, started: bool, line: str) -> float:
    """Computes the bytes that one device sends in one HLO collective of a compiled program."""
    if kind in ("collective-permute", "collective-broadcast"):
        pairs = _PAIRS.search(line)
        ends = [pair.split(",") for pair in re.findall(r"\{([^{}]*)\}", pairs[1])] if pairs else []
        if pairs and all(source == target for source, target in ends):
            return 0.0
        # A started one states its operand, its result, and two numbers for its own use.
        return _size(line.replace("u32[]", "")) / 2 if started else _size(line)
    p = _group(line)
    if kind == "all-gather":
        output = _size(line) * (p / (p + 1) if started else 1)  # started: operand and result
        return output * (p - 1) / p
    if kind == "reduce-scatter":
        return _size(line) * (p - 1)
    if kind == "all-reduce":
        return 2 * _size(line) * (p - 1) / p
    return _size(line) / (2 if started else 1) * (p - 1) / p


def _group(line: str) -> int:
    """Parses the number of devices in an HLO collective's group, in a compiled program."""
    if listed := _GROUPS.search(line):
        return listed[1].count(",") + 1
    if iota := _IOTA.search(line):
        return int(iota[2])
    if named := _NAMED.search(line):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
        # An axis, or a part of one: 'a':(before)size.
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    given = line[max(line.find("replica_groups"), 0) :].strip()
    raise ValueError(
        f"compiled: expected replica_groups of every collective, in a form known here, got "
        f"{given[:240]!r}"
    )


def _size(line: str) -> float:
    """Computes the bytes of an HLO instruction's result, all parts of a tuple together."""
    operation = _OPERATION.search(" " + line)
    result = (" " + line)[: operation.start() + 1] if operation else line
    return sum(_bytes(kind, dims) for kind, dims in _ARRAY.findall(result))


def _bytes(kind: str, dims: str) -> float:
    if kind == "token":
        return 0.0
    bits = _BITS.match(kind)
    width = 8 if kind == "pred" or not bits else int(bits[1])
    return math.prod(map(int, filter(None, dims.split(",")))) * width / 8


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
