"""Lowering of functions for platforms that this machine need not have; what the programs call.

`check_portable` is what a table of public functions asks of each: forward and backward, for GPUs
and TPUs, on a machine that has CPUs only and with nothing set in the environment.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

PLATFORMS = ("cuda", "tpu")
# Calls that a program may hold wherever it runs, and those that each platform's runtime knows.
_ANYWHERE = (
    r"Sharding|SPMD\w+|xla\.sdy\.\w+|annotate_device_placement|shape_assertion|AllocateBuffer"
    r"|stablehlo\.dynamic_\w+|mhlo\.\w+"
)
_KNOWN = {
    "cpu": r"lapack_[sdcz]\w+",
    "cuda": r"(cu|cublas|cusolver|cusparse|cudnn)_\w+|__cudnn\$\w+|mosaic_gpu_v2",
    "tpu": r"Eigh|Qr|ProductOfElementaryHouseholderReflectors|LuDecomposition|ApproxTopK"
    r"|tpu_custom_call",
}
_CALL = re.compile(r'stablehlo\.custom_call @"?([^\s"(]+)')


def lowered_for(f: Callable[..., Any], *args: Any, platform: str | Sequence[str]) -> str:
    """StableHLO of jit(f), exported for a platform or for several at once.

    Args:
      f: a function of pytrees of arrays, jitted or not.
      *args: arrays, or `jax.ShapeDtypeStruct` in their place (symbolic sizes are possible).
      platform: "cpu", "cuda", "tpu", or several of these.
    """
    return exported_for(f, *args, platform=platform).mlir_module()


def exported_for(
    f: Callable[..., Any], *args: Any, platform: str | Sequence[str]
) -> jax.export.Exported:
    """As `lowered_for`, the exported program itself."""
    platforms = [platform] if isinstance(platform, str) else list(platform)
    return jax.export.export(jax.jit(f), platforms=platforms)(*args)


def custom_calls(text: str) -> set[str]:
    """Targets of the custom calls of a program."""
    return set(_CALL.findall(text))


def foreign_calls(text: str, platform: str | Sequence[str]) -> set[str]:
    """Targets that the runtimes of the platforms do not know, a CPU's on a GPU among them."""
    platforms = [platform] if isinstance(platform, str) else platform
    known = re.compile("|".join([_ANYWHERE, *(_KNOWN[p] for p in platforms)]))
    return {name for name in custom_calls(text) if not known.fullmatch(name)}


def check_portable(
    f: Callable[..., Any],
    *args: Any,
    differentiable: bool = True,
    platforms: Sequence[str] = PLATFORMS,
) -> None:
    """Lowers f, and the gradient of a sum of squares of its results, for all platforms at once.

    Args:
      f: a function of pytrees of arrays.
      *args: its arguments.
      differentiable: whether the gradient with respect to all floating arguments is lowered too.
      platforms: for these; a call that none of them knows is an error.
    """

    def both(*args: Any) -> Any:
        out = f(*args)
        return (out, gradient(f, *args)) if differentiable else out

    unknown = foreign_calls(lowered_for(both, *args, platform=platforms), platforms)
    assert not unknown, f"calls that {' and '.join(platforms)} do not know: {sorted(unknown)}"


def gradient(f: Callable[..., Any], *args: Any) -> Any:
    """The gradient of the sum of the squared parts of all results, for all floating arguments."""
    leaves, treedef = jax.tree.flatten(args)
    moving = [i for i, x in enumerate(leaves) if is_inexact(x)]

    def loss(values: list[Any]) -> jax.Array:
        full = list(leaves)
        for i, value in zip(moving, values, strict=True):
            full[i] = value
        out = jax.tree.leaves(f(*jax.tree.unflatten(treedef, full)))
        parts = [jnp.sum(jnp.square(jnp.abs(x))).astype(float) for x in out if is_inexact(x)]
        return sum(parts, jnp.zeros((), float))

    return jax.grad(loss)([leaves[i] for i in moving])


def is_inexact(x: Any) -> bool:
    """Whether an array, a tracer or a `jax.ShapeDtypeStruct` holds floating or complex numbers."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)
