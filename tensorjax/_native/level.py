"""CPU instruction-set levels, such as x86-64-v4, by which the C++ libraries are named.

This module imports no other module of the package.
"""

import platform
from pathlib import Path

# The x86-64 psABI's levels, best first, by the names that Linux gives the instructions: all that a
# compiler may use at this level, or a virtual machine that hides one would end the process.
_NEEDED = {
    "x86-64-v2": {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"},
    "x86-64-v3": {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
X86 = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
_X86_MACHINES = ("x86_64", "AMD64")


def known(machine: str | None = None) -> tuple[str, ...]:
    """Returns all instruction-set levels of a CPU architecture, such as x86-64-v3, best first.

    Args:
      machine: as `platform.machine` names it; this one by default.
    """
    machine = machine or platform.machine()
    return (*X86, "x86-64") if machine in _X86_MACHINES else (machine,)


def lacks(name: str) -> tuple[str, ...]:
    """Returns the instructions of a CPU instruction-set level that this CPU or Linux lacks."""
    if name not in X86:
        return ()
    needed = set().union(*(_NEEDED[lower] for lower in X86[X86.index(name) :]))
    return tuple(sorted(needed - _flags()))


def level() -> str:
    """Returns this CPU's best instruction-set level, such as x86-64-v3, or its architecture."""
    return next(name for name in known() if not lacks(name))


def _flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # another system, or a container that hides it: jaxlib itself needs as much
        return _NEEDED[X86[-1]]
    return set(next((line for line in lines if line.startswith("flags")), "").split())
