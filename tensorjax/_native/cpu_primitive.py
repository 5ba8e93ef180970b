"""JAX primitive lowered to a CPU kernel or to XLA operations, as the platform demands.

A function that asks for the default backend while it is traced decides for whatever device the
process has, not for the one that the program is lowered for: the program of `jax.export` for GPUs,
made on a machine with CPUs, would call code that no GPU has. `on_cpu` stands in the jaxpr as one
primitive; only when it is lowered is one of both functions traced, and nothing of the other one is
compiled.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec


class _Choice(NamedTuple):
    """Parameters of the JAX primitive lowered to a CPU kernel on CPUs, to XLA elsewhere; hashable.

    Attributes:
      otherwise: for everything else.
      static: arguments of both that come first.
      operands: structure of the others.
      results: shapes and dtypes of what both return, without axes of batches.
      alone: whether ``native`` serves programs of one device only.
      batched: whether ``native`` serves batches.
      batches: of every `jax.vmap`, from the innermost on: for each operand whether it has the axis,
        which then is its first one; and the size.
    """

    native: Callable[..., Any]
    otherwise: Callable[..., Any]
    static: tuple[Any, ...]
    operands: Any
    results: tuple[Any, ...]
    alone: bool
    batched: bool = True
    batches: tuple[tuple[tuple[bool, ...], Any], ...] = ()


def on_cpu(
    native: Callable[..., Any],
    otherwise: Callable[..., Any],
    *operands: Any,
    static: tuple[Any, ...] = (),
    results: Sequence[jax.ShapeDtypeStruct],
    alone: bool = True,
    batched: bool = True,
) -> list[Any]:
    """Binds a JAX primitive that is lowered to a kernel on CPUs, and to XLA operations elsewhere.

    That is, ``native(*static, *operands)`` or ``otherwise(…)``.

    Programs made for `jax.export` take ``otherwise`` too, for CPUs as well: they are loaded where
    ``native`` may not be installed. It has no derivatives: the caller gives them.

    Args:
      native: a function of pytrees of arrays, of which `jax.vmap` takes batches; hashable.
      otherwise: another one, which returns the same up to roundoff.
      *operands: pytrees of arrays.
      static: hashable arguments of both.
      results: shapes and dtypes of the leaves that both return.
      alone: for ``native`` that XLA could not split over several devices; ``otherwise`` then serves
        programs for more than one, but for what `jax.shard_map` gives each of them.
      batched: for ``native`` that takes a batch in one call; else ``otherwise`` serves batches.

    Returns:
      The leaves of what is returned.
    """
    leaves, tree = jax.tree.flatten(operands)
    if alone and any(map(_is_placed, leaves)):
        return jax.tree.leaves(otherwise(*static, *operands))
    shapes = tuple((r.shape, jnp.dtype(r.dtype)) for r in results)
    choice = _Choice(native, otherwise, static, tree, shapes, alone, batched)
    return _choice_p.bind(*_varying_alike(leaves), choice=choice)


def _is_placed(x: Any) -> bool:
    """Whether an array is explicitly sharded, which bars a CPU kernel: its results are not."""
    mesh, spec = jax.typeof(x).sharding.mesh, jax.typeof(x).sharding.spec
    if mesh.empty or AxisType.Explicit not in mesh.axis_types:
        return False
    return mesh.size > 1 or any(axis is not None for axis in spec)


def _varying_alike(leaves: Sequence[Any]) -> list[Any]:
    """Casts the operands of a CPU kernel to vary over the same mesh axes, for `jax.shard_map`."""
    axes = [getattr(getattr(jax.typeof(x), "mat", None), "varying", frozenset()) for x in leaves]
    every = frozenset().union(*axes)
    return [
        jax.lax.pcast(x, tuple(every - own), to="varying") if every - own else x
        for x, own in zip(leaves, axes, strict=True)
    ]


def _shapes(*avals: Any, choice: _Choice) -> list[Any]:
    like, lead = avals[0], tuple(size for _, size in reversed(choice.batches))
    out = []
    for shape, dtype in choice.results:
        whole = (*lead, *shape)
        sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*[None] * len(whole)))
        out.append(like.update(shape=whole, dtype=dtype, weak_type=False, sharding=sharding))
    return out


def _batched(leaves: Sequence[Any], axes: Sequence[Any], *, choice: _Choice) -> tuple[Any, Any]:
    size = next(x.shape[a] for x, a in zip(leaves, axes, strict=True) if a is not None)
    moved = [x if a is None else jnp.moveaxis(x, a, 0) for x, a in zip(leaves, axes, strict=True)]
    level = tuple(a is not None for a in axes), size
    out = _choice_p.bind(*moved, choice=choice._replace(batches=(*choice.batches, level)))
    return out, [0] * len(out)


def _lowered(context: Any, *values: Any, choice: _Choice) -> Any:
    is_native = _calls(context, choice.alone) and (choice.batched or not choice.batches)
    function = choice.native if is_native else choice.otherwise

    def flat(*leaves: Any) -> list[Any]:
        operands = jax.tree.unflatten(choice.operands, leaves)
        return jax.tree.leaves(function(*choice.static, *operands))

    for mapped, size in choice.batches:
        flat = jax.vmap(flat, [0 if m else None for m in mapped], axis_size=size)
    operands = [_unvarying(x) for x in context.avals_in]
    return mlir.lower_fun(flat)(context.replace(avals_in=operands), *values)


def _unvarying(x: Any) -> ShapedArray:
    """Makes an operand of the CPU primitive vary over no mesh axes, inside `jax.shard_map`.

    Results of `jax.ffi` vary over no mesh axes, and JAX would refuse them beside others that do.
    """
    return ShapedArray(x.shape, x.dtype, x.weak_type, sharding=x.sharding)


def _calls(context: Any, alone: bool) -> bool:
    """Whether a program being lowered may call the CPU kernel, as it runs on this process's CPU.

    If ``alone``, for one device only.
    """
    module = context.module_context
    platforms = tuple(context.platforms or module.platforms)
    if platforms != ("cpu",) or module.lowering_parameters.for_export:
        return False
    return not alone or _devices(module.axis_context) == 1


def _devices(context: Any) -> int:
    """Counts the devices of a program being lowered, which decide if it may call a CPU kernel.

    Manual axes of `jax.shard_map` do not count.
    """
    if hasattr(context, "num_devices"):
        return context.num_devices
    axes = context.mesh.shape.items()
    return math.prod(size for name, size in axes if name not in context.manual_axes)


@functools.lru_cache(maxsize=1024)
def _jitted(choice: _Choice) -> Callable[..., Any]:
    return jax.jit(functools.partial(_choice_p.bind, choice=choice))


def _evaluated(*leaves: Any, choice: _Choice) -> Any:
    return _jitted(choice)(*leaves)


_choice_p = Primitive("tensorjax_on_cpu")
_choice_p.multiple_results = True
_choice_p.def_impl(_evaluated)
_choice_p.def_abstract_eval(_shapes)
batching.primitive_batchers[_choice_p] = _batched
mlir.register_lowering(_choice_p, _lowered)
