"""Device placement and sharding of results: on the devices and meshes of the arguments.

`placed` decorates public functions. It does two things, and neither on a machine with one device.

*Devices.* Host arithmetic (LAPACK, dynamic ranks) leaves its results to JAX, which puts them on the
default device. Where arguments are committed to devices, so are results: to the one device, or,
for arguments sharded over a mesh, to that mesh, each axis sharded as in the argument that the
result takes after, where sizes allow it, and else replicated. In the context of a mesh in mode Auto
(`jax.set_mesh`) JAX itself puts new arrays on that mesh, replicated, and there they stay.

*Explicit meshes*, JAX's default. There shardings are part of types, and what merges a sharded axis,
or sums over one, needs an output sharding for every product. Functions are computed with
all these axes in mode Auto instead, where XLA finds the shardings within, and results get types
again, the same under jit and outside, that follow from the arguments (`results_like`, unless the
function has a rule of its own).
"""

import contextlib
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from tensorjax import _check, _other_names

P = ParamSpec("P")
R = TypeVar("R")
# Gives the specs of the leaves of a result, from the result and the arguments.
Rule = Callable[[Any, Any], Sequence[PartitionSpec]]
_REPLICATED = PartitionSpec()
_COMMITTED = operator.attrgetter("committed")
_config: Any = jax.config  # whose options have no types


def placed(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator that places results on the devices, or explicit mesh, of the arguments.

    Results on an explicit mesh are sharded as `results_like` says. JAX's own error
    is raised if arguments are committed to different devices.
    """
    return placed_by(results_like)(function)


def placed_by(rule: Rule) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator that places results on the arguments' devices, sharded by a rule."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _placed(function, rule)

    return decorate


def _placed(function: Callable[..., Any], rule: Rule) -> Any:
    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        try:
            if _is_alone():
                try:
                    return function(*args, **options)
                except (
                    Exception
                ):  # an explicit mesh of one device: else nothing is looked at before
                    if _explicit_mesh(_bound(jax.tree.leaves((args, options)))) is None:
                        raise
            bound = _bound(jax.tree.leaves((args, options)))
            if not bound:
                return function(*args, **options)
            mesh = _explicit_mesh(bound)
            run = functools.partial(_on_devices, function)
            if mesh is None:
                return run(bound, args, options)
            return _in_auto_mode(run, mesh, rule, args, options)
        except TypeError as error:
            known = inspect.signature(function).parameters if options else ()
            _other_names.explain(function.__name__, known, options, error)
            raise

    wrapped.is_placed = True  # type: ignore[attr-defined]
    return wrapped


@functools.cache
def _is_alone() -> bool:
    """Whether JAX has a single device, a CPU, so that results need no placement."""
    platforms = _config.jax_platforms or ""
    return jax.device_count() == 1 and jax.default_backend() == "cpu" and "," not in platforms


def _bound(leaves: Sequence[Any]) -> list[Any]:
    """Returns the arrays that determine the devices of results: traced or committed ones."""
    try:
        # Mostly all are arrays and none is: a train of 20 cores is looked through in a microsecond.
        if not any(map(_COMMITTED, leaves)):
            return []
    except (AttributeError, jax.errors.ConcretizationTypeError):
        pass
    return [x for x in leaves if isinstance(x, Tracer) or _is_committed(x)]


def _is_committed(x: Any) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.committed


def returned(host: Any, given: Any) -> jax.Array:
    """Places a host array on the devices of ``given``, sharded alike, if that is committed."""
    # Without a device for one that is free; `jnp.asarray` would compile a program per shape.
    return jax.device_put(host, given.sharding if _is_committed(given) else None)


def replicated(given: Any) -> Any:
    """Returns the sharding or device that replicates arrays like committed ``given``, or None."""
    if not _is_committed(given):
        return None
    sharding = given.sharding
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, _REPLICATED)
    (first, *others) = sharding.device_set
    return _whole(sharding) if others else first


def sharded(x: jax.Array, sharding: Any) -> jax.Array:
    """Reshards a result by its argument ``out_sharding``, if given; explicit or automatic axes."""
    if sharding is None:
        return x
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    if AxisType.Explicit in mesh.axis_types:
        return jax.sharding.reshard(x, sharding)
    return jax.lax.with_sharding_constraint(x, sharding)


# Devices.


def _on_devices(function: Callable[..., Any], bound: Sequence[Any], args: Any, options: Any) -> Any:
    """Calls a function, and moves its results to the devices of the committed arguments."""
    held = [x for x in bound if not isinstance(x, Tracer)]
    if len(held) < len(bound) or not held:
        return function(*args, **options)  # JAX itself sees to what is traced
    home = held[0].sharding
    for x in held[1:]:
        if x.sharding is not home and x.sharding.device_set != home.device_set:
            _meet(held[0], x)
    if len(home.device_set) > 1:
        out = function(*args, **options)
        if not any(map(_is_free, jax.tree.leaves(out))):
            return out
        return _committed(out, _over_mesh(out, (args, options), home))
    (device,) = home.device_set
    # Compiled programs are kept by default device too: it is set only where it is another one.
    if device == _default_device():
        out = function(*args, **options)
    else:
        with jax.default_device(device):
            out = function(*args, **options)
    return _committed(out, [device] * len(jax.tree.leaves(out)))


def _default_device() -> Any:
    chosen = _config.jax_default_device
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


@jax.jit(keep_unused=True)
def _meet(x: jax.Array, y: jax.Array) -> None:
    """Raises JAX's error if two arrays are committed to different devices."""


def _committed(out: Any, shardings: Sequence[Any]) -> Any:
    """Commits the uncommitted arrays of a `placed` function's result to given shardings."""
    leaves, tree = jax.tree.flatten(out)
    if not any(_is_free(x) for x in leaves):
        return out
    with jax.ensure_compile_time_eval():  # what is concrete stays so
        moved = [
            jax.device_put(x, s) if _is_free(x) else x
            for x, s in zip(leaves, shardings, strict=True)
        ]
    return jax.tree.unflatten(tree, moved)


def _is_free(x: Any) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and not x.committed


# Explicit meshes.


def _explicit_mesh(bound: Sequence[Any]) -> AbstractMesh | None:
    """Returns the explicitly sharded mesh of the arguments, for placing results there, or None."""
    for x in bound:
        sharding = _named(x)
        if sharding is not None and AxisType.Explicit in sharding.mesh.axis_types:
            mesh = sharding.mesh
            return mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
    return None


def _named(x: Any) -> NamedSharding | None:
    """Returns an array's `NamedSharding`, by which results are placed, or None."""
    sharding = jax.typeof(x).sharding if isinstance(x, Tracer) else getattr(x, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and sharding.mesh.axis_names else None


def _in_auto_mode(run: Any, mesh: AbstractMesh, rule: Rule, args: Any, options: Any) -> Any:
    """Runs a function with explicit mesh axes as Auto, then reshards its results."""
    auto = {name: AxisType.Auto for name, kind in _types(mesh) if kind == AxisType.Explicit}
    traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((args, options)))
    context: Any = contextlib.nullcontext()
    # Concrete arrays bring their mesh along; under an abstract one alone no others could be made.
    if traced or not jax.sharding.get_abstract_mesh().empty:
        context = jax.sharding.use_abstract_mesh(mesh.update_axis_types(auto))
    with context:
        args_in, options_in = jax.tree.map(_with_types(auto), (args, options))
        out = run(_bound(jax.tree.leaves((args_in, options_in))), args_in, options_in)
    leaves, tree = jax.tree.flatten(out)
    specs = rule(out, (args, options))
    explicit = _with_types(dict.fromkeys(auto, AxisType.Explicit))
    typed = (explicit(x, s) for x, s in zip(leaves, specs, strict=True))
    return jax.tree.unflatten(tree, typed)


def _types(mesh: Any) -> Iterator[tuple[str, AxisType]]:
    return zip(mesh.axis_names, mesh.axis_types, strict=True)


def _with_types(types: dict[str, AxisType]) -> Callable[..., Any]:
    """Returns a function that reshards arrays on their mesh, with Auto or Explicit axes."""

    def move(x: Any, spec: PartitionSpec | None = None) -> Any:
        sharding = _named(x)
        if sharding is None or not types.keys() <= set(sharding.mesh.axis_names):
            return x
        mesh = _retyped(sharding.mesh, tuple(types.items()))
        if mesh == sharding.mesh:
            return x
        if isinstance(x, Tracer):
            # Types know explicit axes alone.
            return jax.sharding.reshard(x, NamedSharding(mesh, spec or _REPLICATED))
        spec = sharding.spec if spec is None else spec
        sharding = NamedSharding(mesh, spec, memory_kind=sharding.memory_kind)
        with jax.ensure_compile_time_eval():  # where the spec stays, the same buffers
            return jax.device_put(x, sharding)

    return move


@functools.lru_cache(maxsize=64)
def _retyped(mesh: Any, types: tuple[tuple[str, AxisType], ...]) -> Any:
    kinds = tuple({**dict(_types(mesh)), **dict(types)}[name] for name in mesh.axis_names)
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    return mesh.update_axis_types(dict(types))


# Shardings of results.


def results_like(out: Any, args: Any) -> list[PartitionSpec]:
    """Returns the placement of a function's results: the sharding of the most similar argument.

    A train, or another format, takes after the first argument of its type and number of arrays,
    array by array, on the axes whose sizes allow it; failing that each of its arrays takes after
    the first one that has equal sizes on all sharded axes. An array takes after the first array
    that is sharded, on the leading axes that they share (as a batch). All others are replicated.
    """
    nodes = jax.tree.leaves(args, is_leaf=_is_format)
    formats = [(type(n), jax.tree.leaves(n)) for n in nodes if _is_format(n)]
    held = [x for x in jax.tree.leaves(args) if _is_sharded(x)]
    arrays = [n for n in nodes if not _is_format(n) and _is_sharded(n)]
    specs: list[PartitionSpec] = []
    for node in jax.tree.leaves(out, is_leaf=_is_format):
        if not _is_format(node):
            specs.append(_leading(node, arrays[0]) if arrays else _REPLICATED)
            continue
        leaves = jax.tree.leaves(node)
        same = (xs for kind, xs in formats if kind is type(node) and len(xs) == len(leaves))
        twins = next(same, None)
        for k, x in enumerate(leaves):
            twin = twins[k] if twins else next((y for y in held if _agree(x, y)), None)
            specs.append(_REPLICATED if twin is None else spec_like(x, twin))
    return specs


def like_first(out: Any, arguments: Any) -> list[PartitionSpec]:
    """Returns shardings that place every result like the first argument, on shared leading axes."""
    (first, *_), _ = arguments
    return [_leading(x, first) for x in jax.tree.leaves(out)]


def by_axes(shape: Sequence[int], axes: Sequence[Sequence[tuple[Any, int]]]) -> PartitionSpec:
    """Returns the sharding of a result whose axes come from axes of several argument arrays.

    Args:
      axes: for each of its axes the arrays, and their axes, that it may be sharded as; the first
        that is sharded counts, but no axis of the mesh twice.
    """
    used: set[Any] = set()
    spec: list[Any] = []
    for size, sources in zip(shape, axes, strict=True):
        spec.append(None)
        for x, axis in sources:
            sharding = _named(x)
            name = None if sharding is None else (*sharding.spec, *[None] * np.ndim(x))[axis]
            over = set[Any](name if isinstance(name, tuple) else (name,))
            if name is None or sharding is None or size % _parts(sharding.mesh, name):
                continue
            if not over & used:
                spec[-1] = name
                used |= over
                break
    return PartitionSpec(*spec)


def spec_like(x: Any, given: Any) -> PartitionSpec:
    """Returns a partition spec that shards x like ``given``, on axes whose sizes allow it."""
    sharding = _named(given)
    if sharding is None or np.ndim(x) != np.ndim(given):
        return _REPLICATED
    names = (*sharding.spec, *[None] * (x.ndim - len(sharding.spec)))
    parts = (_parts(sharding.mesh, name) for name in names)
    return PartitionSpec(
        *(name if n % p == 0 else None for n, p, name in zip(x.shape, parts, names, strict=True))
    )


def _parts(mesh: Any, names: Any) -> int:
    over = names if isinstance(names, tuple) else (names,)
    return math.prod(mesh.shape[n] for n in over if n is not None)


def _leading(x: Any, given: Any) -> PartitionSpec:
    sharding, spec = _named(given), list[Any]()
    sizes = np.shape(x), np.shape(given)
    for n, m, name in zip(*sizes, sharding.spec if sharding else (), strict=False):
        if n != m:
            break
        spec.append(name)
    return PartitionSpec(*spec)


def _agree(x: Any, given: Any) -> bool:
    sharding = _named(given)
    if sharding is None or np.ndim(x) != np.ndim(given):
        return False
    sizes = zip(x.shape, given.shape, sharding.spec, strict=False)
    return all(n == m for n, m, name in sizes if name is not None)


def _is_sharded(x: Any) -> bool:
    sharding = _named(x)
    return sharding is not None and any(name is not None for name in sharding.spec)


def _is_format(x: Any) -> bool:
    """Whether an object is a tensor format, as a train, by whose arrays results are placed."""
    return type(x).__module__.startswith("tensorjax.") and not isinstance(x, tuple)


def _over_mesh(out: Any, args: Any, home: Any) -> list[NamedSharding]:
    """Returns the shardings of all results on the mesh, or devices, of the arguments."""
    if not isinstance(home, NamedSharding):
        return [_whole(home)] * len(jax.tree.leaves(out))
    return [NamedSharding(home.mesh, spec) for spec in results_like(out, args)]


def _whole(sharding: Any) -> NamedSharding:
    devices = sorted(sharding.device_set, key=lambda d: d.id)
    return NamedSharding(Mesh(np.asarray(devices), ("devices",)), _REPLICATED)


def placed_like(cores: Sequence[Any], given: Sequence[jax.Array]) -> tuple[Any, ...]:
    """Places new cores on devices, sharded like given cores on axes whose sizes allow it."""
    return tuple(_placed_core(c, g) for c, g in zip(cores, given, strict=True))


def _placed_core(core: Any, given: jax.Array) -> Any:
    sharding = None if _check.is_traced(core, given) else getattr(given, "sharding", None)
    if not isinstance(sharding, NamedSharding):  # of NumPy's arrays there is none
        return core
    return jax.device_put(core, NamedSharding(sharding.mesh, spec_like(core, given)))
