"""Optional dependencies: which extra installs each of them, and errors that name it."""

import contextlib
import importlib.util
from collections.abc import Iterator

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
