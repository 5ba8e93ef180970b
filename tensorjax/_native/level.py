"""CPU instruction-set level, which names the C++ library built for it; needs no other module."""

import platform
from pathlib import Path

_LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "fma"},
}


def level() -> str:
    """Returns the x86-64 level of this CPU (v4: AVX-512, v3: AVX2), or its architecture."""
    machine = platform.machine()
    if machine not in ("x86_64", "AMD64"):
        return machine
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "x86-64"
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    return next((name for name, needed in _LEVELS.items() if needed <= flags), "x86-64")
