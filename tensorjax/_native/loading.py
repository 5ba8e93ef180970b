"""Loading of the C++ kernels: the library of the best instruction-set level that this CPU has."""

import ctypes
import importlib
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any, NamedTuple

import jax

from tensorjax import _blas_threads as _blas
from tensorjax import _shared_libraries
from tensorjax._native import level as _level

CALLS = (
    "tensorjax_round",
    "tensorjax_inner",
    "tensorjax_overlap",
    "tensorjax_multiply",
    "tensorjax_product",
    "tensorjax_add",
    "tensorjax_sketch",
    "tensorjax_lookup",
    "tensorjax_lookup_gradient",
)
_LOG = logging.getLogger("tensorjax")
_guard = threading.Lock()  # handlers may be registered once in a process
_OFF = "turned off by TENSORJAX_NATIVE=0"


class Kernels(NamedTuple):
    """Result of loading the C++ kernels: instruction-set level in use, and why not others.

    Attributes:
      level: that serves, such as "x86-64-v3"; empty if none does.
      why_not: of every other level of this CPU's architecture the reason why it does not serve.
      reason: why none serves; empty if one does.
    """

    level: str
    why_not: dict[str, str]
    reason: str


def kernels() -> Kernels:
    """Loads the C++ kernels; returns the instruction-set level in use, and why not others."""
    return loaded()[1]


def status() -> str:
    """Returns the reason why the C++ kernels cannot be loaded or used; empty if they can."""
    return loaded()[1].reason


def loaded() -> tuple[Any, Kernels]:
    """Loads the C++ library and registers its kernels with JAX, once; returns it and its state."""
    return _found or _first_loaded()


_found: tuple[Any, Kernels] | tuple[()] = ()


def _first_loaded() -> tuple[Any, Kernels]:
    global _found
    with _guard:
        if not _found:
            library, state = _load(os.environ.get("TENSORJAX_NATIVE", "1"))
            if state.reason and state.reason != _OFF:
                _LOG.warning(
                    "the C++ kernels do not serve here: %s. XLA and NumPy serve instead, more "
                    "slowly (said once)", state.reason,
                )  # fmt: skip
            _found = library, state
    return _found


def _load(asked: str) -> tuple[Any, Kernels]:
    """Loads the C++ library of the best level that works, from ``asked`` (TENSORJAX_NATIVE) on."""
    names = _level.known()
    if asked == "0":
        return None, Kernels("", dict.fromkeys(names, _OFF), _OFF)
    if asked not in ("", "1", *names):
        why = f"TENSORJAX_NATIVE: expected 0, 1 or one of {', '.join(names)}, got {asked!r}"
        return None, Kernels("", dict.fromkeys(names, why), why)
    first = names.index(asked) if asked in names else 0
    library, serving, why_not = None, "", {}
    for place, name in enumerate(names):
        why = f"TENSORJAX_NATIVE={asked} asks for less" if place < first else ""
        why = why or _missing(name) or (f"{serving} serves" if serving else "")
        if not why:
            library, why = _tried(_path(name))
        if why:
            why_not[name] = why
        else:
            serving = name
    return library, Kernels(serving, why_not, "" if serving else _reason(why_not))


def _reason(why_not: dict[str, str]) -> str:
    """Returns one reason why no C++ library could be loaded, from the reasons of all levels."""
    if not any(_path(name).exists() for name in why_not):
        return (
            "this installation has none (a wheel without compiled code, or no C++ compiler was "
            "found when it was built)"
        )
    return "; ".join(f"{name}: {why}" for name, why in why_not.items() if _path(name).exists())


def _path(name: str) -> Path:
    return Path(__file__).with_name(f"sweeps-{name}.so")


def _missing(name: str) -> str:
    """Returns the reason why a C++ library cannot be loaded: no file, or no CPU instructions."""
    if not _path(name).exists():
        return "not part of this installation"
    lacking = _level.lacks(name)
    return f"this CPU does not offer {', '.join(lacking)}" if lacking else ""


def _tried(path: Path) -> tuple[Any, str]:
    """Loads a C++ library and registers its kernels; returns it, or None and why it failed."""
    try:
        library = ctypes.CDLL(str(path))
        if why := _shared_libraries.stale(path, _shared_libraries.held_digest(library)):
            return None, why
        if library.tensorjax_interface() > _interface():
            return None, f"{path.name} was built for a newer jaxlib; install tensorjax again"
        routines = ("dsyevd", "zheevd", "dgesdd")
        library.tensorjax_set_lapack(*map(_lapack, routines), *blas_threads())
        # All are looked for before one is registered: a name can be given only once.
        handlers = {name: jax.ffi.pycapsule(getattr(library, name)) for name in CALLS}
        for name, handler in handlers.items():
            jax.ffi.register_ffi_target(name, handler, platform="cpu")
    except (OSError, AttributeError, ImportError, KeyError, ValueError, RuntimeError) as error:
        return None, f"{path.name}: {error}"
    return library, ""


def _interface() -> int:
    """Returns jaxlib's FFI version, 1000 major + minor, that a C++ library may need to load."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    numbers = re.findall(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", header.read_text())
    major, minor = map(int, numbers)
    return 1000 * major + minor


def _lapack(name: str) -> ctypes.c_void_p:
    """Returns the address of a LAPACK routine in SciPy, for the C++ kernels to call."""
    capsule = importlib.import_module("scipy.linalg.cython_lapack").__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_void_p(api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule)))


def blas_threads() -> list[ctypes.c_void_p]:
    """Returns functions that get and set SciPy's BLAS thread count, for the C++ library."""
    found = _blas.controls("scipy.linalg.cython_lapack")
    return [ctypes.cast(f, ctypes.c_void_p) for f in found] if found else [ctypes.c_void_p()] * 2
