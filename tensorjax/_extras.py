"""Optional dependencies and errors that name their extra; names that `dir` and `help` list."""

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

# By the names under which they are imported; several extras may bring one, the first is named.
EXTRAS = {
    "flax": "nn",
    "optax": "nn",
    "orbax": "nn",
    "safetensors": "nn",
    "xxhash": "offload",
    "sklearn": "experiments",
    "matplotlib": "plot",
    "tensornetwork": "network",
    "cotengra": "network",
    "xarray": "xarray",
}
# The packages that cannot be imported without some of them.
NEEDED = {
    "models": ("flax", "optax"),
    "nn": ("flax", "optax"),  # Flax itself imports Optax
    "optim": ("optax",),
    "parallel": ("optax",),
    "plot": ("matplotlib",),
}


def is_there(package: str) -> bool:
    """Whether an optional dependency is installed, found without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # an import hook that refuses it, or a module without a spec
        return False


@contextlib.contextmanager
def needed_by(name: str) -> Iterator[None]:
    """Context manager that names the extra to install when an import within it fails.

    Args:
      name: of what needs it, such as "tensorjax.nn".

    Raises:
      ModuleNotFoundError: with the command that installs the extra. Other failures pass.

    Example:
      >>> with needed_by("tensorjax.optim"):
      ...     raise ModuleNotFoundError("No module named 'optax'", name="optax")
      Traceback (most recent call last):
      ModuleNotFoundError: tensorjax.optim needs optax, which is not installed: pip install ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        extra = EXTRAS[missing]
        raise ModuleNotFoundError(
            f"{name} needs {missing}, which is not installed: pip install 'tensorjax[{extra}]' "
            f"brings it (the extra {extra!r})",
            name=error.name,
        ) from error


def names(package: str, public: Sequence[str]) -> Callable[[], list[str]]:
    """Returns the ``__dir__`` of a package whose docstring is a table of its public names.

    `dir` lists all of them, `help` those that the docstring leaves out: it would print the whole
    documentation of every class and function, thousands of lines, where a table is what one needs.

    Args:
      package: its ``__name__``.
      public: its ``__all__``.

    Returns:
      A function without arguments.
    """

    def listed() -> list[str]:
        if not _asked_by_help():
            return list(public)
        told = set(re.findall(r"\w+", sys.modules[package].__doc__ or ""))
        return [name for name in public if name not in told]

    return listed


def _asked_by_help() -> bool:
    """Whether `pydoc` collects the members of a module, by `inspect.getmembers`, which uses `dir`.

    The module has no other way to tell it which ones to print: `__all__` names all that is public.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == "pydoc":
            return True
        frame = frame.f_back
    return False
