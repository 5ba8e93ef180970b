"""Parameter groups of a trainer: their construction, tensors in the store, and memory for reuse."""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._typing import DTypeLike, Optimizer
from tensorjax.offload._training.storage.arrays import finite, owned
from tensorjax.offload._training.storage.process_shards import Shards
from tensorjax.offload._training.storage.storage import HostStorage, Storage
from tensorjax.offload._training.storage.tensor_packing import TensorPacking
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer, Into

Params = Mapping[str, Any]
# Collections of Flax's Linen that are not trained, as they stand beside "params".
_STATE = {"batch_stats", "spectral_stats", "cache", "losses", "fp8_params"}
# Names of a mean and a variance that stand beside each other: of Flax, of PyTorch, of Keras.
_MOMENTS = (
    ("mean", "var"),
    ("running_mean", "running_var"),
    ("moving_mean", "moving_variance"),
    ("moving_mean", "moving_var"),
)


@dataclass(frozen=True)
class Group:
    """Group of parameters that are updated together, with their storage and optimiser.

    Attributes:
      params, state, weights, gradient: pytrees of the parameters, of the optimiser's state, of the
        parameters as the device computes with them (None if they are the same), and of a gradient
        that waits in the store.
      optimizer: what updates it.
      lent: whether its gradients are in memory that updates cannot write to.
    """

    name: str
    params: TensorPacking
    state: TensorPacking
    weights: TensorPacking | None
    gradient: TensorPacking
    storage: Storage
    optimizer: HostOptimizer
    lent: bool = False

    @property
    def device(self) -> TensorPacking:
        """Layout of a group's parameters in a store, in the dtype in which the device computes."""
        return self.params if self.weights is None else self.weights

    @property
    def packings(self) -> tuple[TensorPacking, ...]:
        """Layouts of all pytrees that a parameter group stores: parameters, state, cast ones."""
        return tuple(b for b in (self.params, self.state, self.weights) if b is not None)

    @property
    def held(self) -> int:
        """Bytes of staging memory to read a group's parameters and optimiser state."""
        return self.params.staged + self.state.staged

    @property
    def into(self) -> Into:
        """Memory that a group's update results overwrite: "place", "gradient" or "spare"."""
        if self.storage.in_place:
            return "place"
        return "spare" if self.lent else "gradient"

    @property
    def results(self) -> int:
        """Bytes of a group's new parameters and optimiser state until they are written."""
        return self.taken(self.into)

    def taken(self, into: Into) -> int:
        """Computes the bytes of a group's update results beyond the memory that they overwrite."""
        if into == "place":
            return 0 if self.weights is None else self.weights.nbytes
        return sum(b.nbytes for b in self.packings)

    @property
    def sums(self) -> int:
        """Bytes of a group's gradient while it is summed, in single precision at least."""
        leaves = self.gradient.leaves
        wide = [linalg.factor_dtype(leaf.dtype).itemsize for leaf in leaves]
        return sum(
            leaf.nbytes // leaf.dtype.itemsize * n for leaf, n in zip(leaves, wide, strict=True)
        )

    @property
    def kind(self) -> Any:
        """Shapes and dtypes of a group's parameters and state; equal ones can reuse memory."""
        packings = (self.params, self.state)
        return tuple(tuple((x.shape, x.dtype) for x in packing.leaves) for packing in packings)


class Handed(list[Any]):
    """List of a parameter group's device arrays, to which a weak reference tells if in use."""

    __slots__ = ("__weakref__",)


def not_handed() -> None:
    """Returns None, like a dead weak reference, for a parameter group not on the device."""


class Spare:
    """Pool of memory of parameter groups' results, which groups of equal shapes reuse.

    It keeps the memory of states; where gradients are lent, that of parameters too, once the
    device, to which they are handed, does not use them any more. Where memory is bounded, it keeps
    one result at most, and only as long as that and the results being written take no more than
    those of the largest group. Else it keeps two of every kind, as one is written while another is
    updated, or one if a kind has one group. The caller holds a lock.

    Args:
      bounded: whether memory is.
    """

    def __init__(self, groups: Collection[Group], *, bounded: bool) -> None:
        counts = Counter(g.kind for g in groups if g.into != "place")
        self._bounded, self._most = bounded, max(g.results for g in groups)
        self._room = {
            kind: min(count - 1 if bounded else count, 2) for kind, count in counts.items()
        }
        self._held: dict[Any, list[_Results]] = {}
        self.nbytes = 0

    def keep(
        self, group: Group, params: Any, state: Any, handed: Callable[[], object] = not_handed
    ) -> None:
        """Adds the memory of a parameter group's written results to the pool for reuse.

        Args:
          handed: gives what the parameters are in as long as they are handed on, or None.
        """
        if group.into == "place":
            return
        if self._bounded and self._room[group.kind]:
            self.clear()
        held = self._held.setdefault(group.kind, [])
        if len(held) < self._room[group.kind]:
            results = _Results(params if group.into == "spare" else None, state, handed)
            held.append(results)
            self.nbytes += self._bytes(group, results)

    def take(self, group: Group) -> Any:
        """Takes memory of a parameter group from the pool, for another's results; or None."""
        held = None if group.into == "place" else self._held.get(group.kind)
        found = None
        if held:
            results = next((one for one in held if one.handed() is None), held[-1])
            held.remove(results)
            self.nbytes -= self._bytes(group, results)
            found = group.state.unflatten(results.state)
            if group.into == "spare":
                free = results.handed() is None
                found = (group.params.unflatten(results.params) if free else None, found)
        if self._bounded and self.nbytes + group.results > self._most:
            self.clear()
        return found

    def clear(self) -> None:
        """Frees all memory that the pool keeps for results of parameter groups."""
        self._held, self.nbytes = {}, 0

    def _bytes(self, group: Group, results: "_Results") -> int:
        return group.state.nbytes + (0 if results.params is None else group.params.nbytes)


@dataclass(frozen=True, eq=False)
class _Results:
    params: Any
    state: Any
    handed: Callable[[], object]


def shapes(params: Params) -> dict[str, Any]:
    """Returns shapes and dtypes of a trainer's parameter groups, without allocating arrays.

    Raises:
      TypeError: some are not floating: they would have no gradient.
      ValueError: some are state of the model, not parameters.
    """
    for name, group in _check.mapping("params", params, "parameter groups").items():
        if callable(group) and not _takes_nothing(group):
            raise TypeError(
                f"params: {name}: expected a pytree of arrays or a function without arguments, got "
                f"{type(group).__name__}, which takes some; of a module of Flax, give "
                "nnx.state(module, nnx.Param)"
            )
        for path, leaf in () if callable(group) else jax.tree_util.tree_leaves_with_path(group):
            if not hasattr(leaf, "dtype"):
                raise TypeError(
                    f"params: {name}{jax.tree_util.keystr(path)}: expected an array, got "
                    f"{type(leaf).__name__}"
                )
    found = {
        name: jax.eval_shape(group if callable(group) else lambda g=group: g)
        for name, group in params.items()
    }
    for name, group in found.items():
        _check_trainable(name, group)
        if group is None:
            raise TypeError(
                f"params: {name}: expected a pytree of arrays, got None; give an empty dictionary "
                "to a layer without parameters"
            )
        for path, leaf in jax.tree_util.tree_leaves_with_path(group):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                where = jax.tree_util.keystr(path)
                raise TypeError(
                    f"params: {name}{where}: expected a floating dtype, got {leaf.dtype}; give "
                    "numbers that are not trained to the layer's function or in the batch"
                )
    return found


def _check_trainable(name: str, group: Any) -> None:
    """Raises ValueError if a trainer's parameter group holds model state, such as running means.

    It is told by its kind (a variable of Flax NNX that is no `nnx.Param`), by its collection (Flax
    Linen), or by its names ("mean" beside "var", "running_mean" beside "running_var").
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(group, is_leaf=_is_variable):
        kinds = {kind.__name__ for kind in type(leaf).__mro__}
        keys = [str(_name(key)) for key in path]
        beside = _statistics(group, path)
        if (_is_variable(leaf) and "Param" not in kinds) or _STATE & {*keys} or beside:
            kind = type(leaf).__name__ if _is_variable(leaf) else beside or "a collection of state"
            raise ValueError(
                f"params: {name}{jax.tree_util.keystr(path)}: expected trainable parameters, got "
                f"{kind}: an optimiser would change it. Layers of a trainer carry no state: train "
                "with nnx.state(module, nnx.Param) (Linen: variables['params']), and give the rest "
                "to the layer's function, such as running statistics that stay as they are"
            )


def _is_variable(x: Any) -> bool:
    """Whether a leaf of a parameter group is a Flax NNX variable, told without importing Flax."""
    return any(k.__name__ == "Variable" and "flax" in k.__module__ for k in type(x).__mro__)


def _statistics(group: Any, path: Any) -> str:
    """Describes an entry of a parameter group that looks like a running mean or variance, or ""."""
    last = _name(path[-1]) if path else None
    pairs = [pair for pair in _MOMENTS if last in pair]
    beside: Any = group
    for key in path[:-1] if pairs else ():
        beside = getattr(beside, key.name) if hasattr(key, "name") else beside[_name(key)]
    for names in pairs:
        if hasattr(beside, "get"):
            moments: list[Any] = [beside.get(k) for k in names]
        else:
            moments = [getattr(beside, k, None) for k in names]
        shapes = {np.shape(m) if hasattr(m, "dtype") else None for m in moments}
        if len(shapes) == 1 and None not in shapes:
            return f"running statistics ({names[0]!r} and {names[1]!r})"
    return ""


def _name(key: Any) -> Any:
    """Returns the name in one entry of a path in a parameter group: key, attribute or index."""
    return getattr(key, "key", getattr(key, "name", getattr(key, "idx", None)))


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell
        return True
    return True


def make_groups(
    shapes: Mapping[str, Any],
    optimizer: HostOptimizer,
    *,
    store: Storage | None,
    in_memory: Collection[str],
    shards: Shards | None = None,
    lent: bool = False,
) -> dict[str, Group]:
    """Creates a trainer's groups, of this process's parts, by name, without allocating arrays."""
    unknown = sorted(set(in_memory) - set(shapes))
    if unknown:
        raise ValueError(f"in_memory: expected groups among {sorted(shapes)}, got {unknown}")
    memory = HostStorage()
    found = {}
    for name, whole in shapes.items():
        part = whole if shards is None else shards.shapes(name, whole)
        mine = optimizer.named(name, part)
        state, weights = mine.shapes(part)
        found[name] = Group(
            name=name,
            params=TensorPacking(f"{name}/params", part),
            state=TensorPacking(f"{name}/state", state),
            weights=TensorPacking(f"{name}/weights", weights) if optimizer.casts else None,
            gradient=TensorPacking(f"{name}/gradient", part),
            storage=memory if store is None or name in in_memory else store,
            optimizer=mine,
            lent=lent,
        )
    return found


def tensors(
    params: Params,
    optimizer: Optimizer,
    *,
    compute_dtype: DTypeLike | None = None,
    gradients: bool = False,
    shardings: Mapping[str, Any] | None = None,
) -> dict[str, jax.ShapeDtypeStruct]:
    """Lists the tensors in the store of a trainer's parameter groups, with shapes and dtypes.

    Arrays below 64 KiB of a group are joined in tensors of at least 4096 bytes.

    Args:
      params: parameters by group, or functions that return them, as for `Trainer`.
      optimizer: an Optax transformation, as for `Trainer`.
      compute_dtype: of the parameters on the device; None is their own.
      gradients: whether gradients may have to wait in the store.
      shardings: of the parameters of each group, as for `Engine`; they matter in one of several
        processes, which keeps its part.

    Returns:
      A mapping from names to `jax.ShapeDtypeStruct`, which `TensorStore.reserve` and
      `offload.capacity` take.

    Raises:
      TypeError, ValueError: parameters or an optimiser that `Trainer` would refuse.

    Example:
      >>> import jax.numpy as jnp
      >>> import optax
      >>> from tensorjax import offload
      >>> list(offload.tensors({"a": {"kernel": jnp.zeros((256, 256))}}, optax.sgd(0.1)))
      ['a/params/kernel']

    Source: ours.
    """
    whole = shapes(params)
    shards = Shards(whole, shardings or {})
    kept = HostOptimizer(optimizer, compute_dtype)
    groups = make_groups(whole, kept, store=None, in_memory=(), shards=shards)
    return specs(groups.values(), gradients=gradients)


def specs(groups: Any, *, gradients: bool) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of the store's tensors for a trainer's parameter groups."""
    found: dict[str, jax.ShapeDtypeStruct] = {}
    for group in groups:
        for packing in (*group.packings, *((group.gradient,) if gradients else ())):
            found.update(packing.specs)
    return found


def begin(groups: dict[str, Group], params: Params, shards: Shards) -> None:
    """Stores the initial parameters and optimiser states of a trainer's parameter groups."""
    for name, group in groups.items():
        _begin(group, params[name], shards)
        group.storage.settle()


def _begin(group: Group, given: Any, shards: Shards) -> None:
    """Stores one parameter group's initial parameters, and then its initial optimiser state."""
    made = shards.cut(group.name, given() if callable(given) else given)
    leaves = group.params.flatten(made)
    del made
    held = group.params.unflatten([owned(leaves.pop(0)) for _ in range(len(leaves))])
    optimizer = group.optimizer
    if not finite(held):
        raise ValueError(f"params: {group.name}: expected finite numbers, got NaN or infinite ones")
    if group.weights is not None:
        put(group, group.weights, optimizer.cast(held))
    put(group, group.params, held)
    put(group, group.state, optimizer.init(held))


def put(group: Group, packing: TensorPacking, tree: Any, storage: Storage | None = None) -> None:
    """Writes a parameter group's parameters or optimiser state to storage, packed."""
    where = group.storage if storage is None else storage
    where.write((packing, packing.flatten(tree)), deadline=0.0, step=-1)


def get(packing: TensorPacking, storage: Storage, copy: Callable[[Any], Any]) -> Any:
    """Reads a parameter group's parameters or optimiser state from storage, copied by ``copy``."""
    reading = storage.read(packing, deadline=0.0, step=-1)
    try:
        return packing.unflatten([copy(x) for x in reading.arrays()[0]])
    finally:
        reading.release()
