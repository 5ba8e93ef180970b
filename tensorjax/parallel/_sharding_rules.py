"""Sharding rules: which mesh axes split the batch, the features, and the sides of weights."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from tensorjax import _check
from tensorjax._typing import PyTree
from tensorjax.parallel import _collectives as collectives
from tensorjax.parallel._collectives import Axes

Rule = str | tuple[str, ...] | None

_WIDE = ("mlp", "heads", "vocab")
_WHOLE = ("layer", "qkv", "position")  # no rule: every device holds all of these axes
_KEYS = ("batch", "length", "features", "embed", *_WIDE)


def _axes(rule: Rule) -> Axes:
    return () if rule is None else (rule,) if isinstance(rule, str) else tuple(rule)


@dataclasses.dataclass(frozen=True, eq=False)
class Placing:
    """Rules by which a layout shards a transformer over a mesh; the base class of `Layout`.

    Args:
      name, mesh, rules, rows, overlap: as for `Layout`.
    """

    name: str
    mesh: Mesh | None = None
    rules: Mapping[str, Rule] = dataclasses.field(default_factory=dict)
    rows: str = "scatter"
    overlap: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError unless the sharding rules name mesh axes and fit together."""
        there = () if self.mesh is None else self.mesh.axis_names
        for key, rule in self.rules.items():
            if key not in _KEYS:
                raise ValueError(f"rules: expected keys among {', '.join(_KEYS)}, got {key!r}")
            strange = [axis for axis in _axes(rule) if axis not in there]
            if strange:
                raise ValueError(
                    f"rules: expected axes of the mesh, {there}, got {strange[0]!r} for {key!r}"
                )
        if len({self._of(key) for key in _WIDE}) > 1:
            got = {key: self.rules.get(key) for key in _WIDE}
            raise ValueError(f"rules: expected mlp, heads and vocab on the same axes, got {got}")
        for key in ("length", "features"):
            if self._of(key) not in ((), self.wide):
                raise ValueError(
                    f"rules: expected {key} on no axis or on those of mlp, {self.wide}, "
                    f"got {self._of(key)}"
                )
        if self.length and self.features:
            raise ValueError("rules: expected length or features on mesh axes, got both")
        if not set(self.stored) <= set(self.batch):
            raise ValueError(
                f"rules: expected embed on axes that split the batch, {self.batch}, got "
                f"{self.stored}; a weight is gathered over them, which pays off only where the "
                "devices along them work on different tokens"
            )
        if set(self.batch) & set(self.wide):
            raise ValueError(
                f"rules: expected batch and mlp on different axes, got {self.batch}, {self.wide}"
            )
        _check.choice("rows", self.rows, ("gather", "scatter"))
        if self.rows == "gather" and self.wide != self.features:
            raise ValueError("rows: expected 'scatter' where features are not split, got 'gather'")

    def _of(self, key: str) -> Axes:
        return _axes(self.rules.get(key))

    @property
    def batch(self) -> Axes:
        """Mesh axes over which the sharding rules split a transformer's batch."""
        return self._of("batch")

    @property
    def length(self) -> Axes:
        """Mesh axes over which the sharding rules split a sequence between linear layers."""
        return self._of("length")

    @property
    def features(self) -> Axes:
        """Mesh axes over which the sharding rules split features between linear layers."""
        return self._of("features")

    @property
    def wide(self) -> Axes:
        """Mesh axes by the sharding rules for weights' wide side (MLP, heads, vocabulary)."""
        return self._of("mlp")

    @property
    def stored(self) -> Axes:
        """Mesh axes over which the sharding rules split weights in storage, gathered for use."""
        return self._of("embed")

    @property
    def vector(self) -> Axes:
        """Mesh axes over which the sharding rules split vectors of features, such as biases."""
        return (*self.wide, *self.stored)

    @property
    def devices(self) -> int:
        """Number of devices in the mesh of the sharding rules; 1 without a mesh."""
        return 1 if self.mesh is None else self.mesh.size

    def ways(self, axes: Axes) -> int:
        """Returns the number of blocks into which the sharding rules' mesh axes split an array.

        Args:
          axes: names of axes of the mesh.

        Returns:
          The product of their sizes; 1 without a mesh.
        """
        return 1 if self.mesh is None else math.prod(self.mesh.shape[axis] for axis in axes)

    # Sharding of parameters and data.

    def spec(self, axes: tuple[str | None, ...]) -> PartitionSpec:
        """Returns a parameter's `PartitionSpec` by the sharding rules, from names of its axes.

        Args:
          axes: one name per axis of the array: "embed", "mlp", "heads", "vocab", "position",
            "layer", "qkv", or None for an axis without a meaning. Weights are ("embed", …, "mlp")
            for `column`, ("mlp", "embed") for `row`, ("vocab", "embed") for `embed`.

        Returns:
          `jax.sharding.PartitionSpec`, with one entry per axis.

        Raises:
          ValueError: an unknown name.
        """
        known = (*_KEYS[3:], *_WHOLE, None)
        for axis in axes:
            if axis not in known:
                raise ValueError(f"axes: expected names among {known}, got {axis!r} in {axes}")
        split = [axis for axis in axes if axis not in (*_WHOLE, None)]
        if not split:
            places = []
        elif len(split) == 1:
            places = [self.vector]
        elif self.rows == "gather" and split[0] != "vocab":
            places = [self.stored, self.wide]
        else:
            places = [self.stored if axis == "embed" else self.wide for axis in split]
        where = iter(places)
        return PartitionSpec(*(_entry(next(where)) if axis in split else None for axis in axes))

    def data_spec(self, *axes: str) -> PartitionSpec:
        """Returns the `PartitionSpec` of data by the sharding rules, by default of tokens.

        Args:
          axes: "batch", "length", "vocab", "heads", "mlp" or any other name, which is not split;
            ("batch", "length") by default. The length of data is never split.

        Returns:
          `jax.sharding.PartitionSpec`, with one entry per axis.
        """
        names = axes or ("batch", "length")
        split = ("batch", *_WIDE)
        return PartitionSpec(*(_entry(self._of(a)) if a in split else None for a in names))

    def x_spec(self) -> PartitionSpec:
        """Returns, by the sharding rules, the `PartitionSpec` of activations."""
        return PartitionSpec(_entry(self.batch), _entry(self.length), _entry(self.features))

    def padded(self, axis: str, size: int) -> int:
        """Returns, by the sharding rules, an axis' global size, "vocab" padded to split evenly.

        Args:
          axis: "vocab", "heads", "mlp", "embed", "batch", "length" or "position".
          size: number of words, of heads (not of their features), …

        Returns:
          The size itself, or for "vocab" the next multiple of the number of blocks.

        Raises:
          ValueError: an axis, other than "vocab", that does not split into equal blocks.
        """
        blocks = {
            "embed": self.ways(self.vector),
            "mlp": self.ways(self.vector),
            "heads": self.ways(self.wide),
            "vocab": self.ways(self.wide),
            "batch": self.ways(self.batch),
            "length": self.ways(self.length),
        }.get(axis, 1)
        if axis == "vocab":
            return -(-size // blocks) * blocks
        if size % blocks:
            down = size // blocks * blocks
            near = f"{down} or {down + blocks}" if down else f"{blocks}"
            if axis == "heads":  # they have to divide the features too, which are not known here
                near = f"a multiple of {blocks} that divides the features"
            raise ValueError(
                f"{axis}: expected a multiple of {blocks} for layout {self.name!r} on a mesh of "
                f"{self._shape()}, got {size}; take {near}, or a mesh whose sizes divide {size}"
            )
        return size

    def local(self, axis: str, size: int) -> int:
        """Returns the size of a device's block of an axis by the sharding rules.

        Args:
          axis: as for `padded`.
          size: global one.

        Returns:
          Entries along the axis on each device.

        Raises:
          ValueError: an axis, other than "vocab", that does not split into equal blocks.
        """
        return self.padded(axis, size) // {
            "embed": self.ways(self.features),
            "mlp": self.ways(self.wide),
            "heads": self.ways(self.wide),
            "vocab": self.ways(self.wide),
            "batch": self.ways(self.batch),
            "length": self.ways(self.length),
        }.get(axis, 1)

    def _shape(self) -> str:
        shape = {} if self.mesh is None else dict(self.mesh.shape)
        return " × ".join(f"{axis}={n}" for axis, n in shape.items()) or "one device"

    def over(
        self, function: Callable[..., Any], in_specs: PyTree, out_specs: PyTree
    ) -> Callable[..., Any]:
        """Maps a function of blocks to one of global arrays by the sharding rules, in `shard_map`.

        Args:
          function: of blocks.
          in_specs: of its arguments, `jax.sharding.PartitionSpec` in a tree for each.
          out_specs: of its results.

        Returns:
          A function of global arrays with the same arguments, for `jax.jit` and `jax.grad`.

        Raises:
          ValueError: when called, data or x (by `data_spec`, `x_spec`) whose batch does not split.
        """
        if self.mesh is None:
            return function
        mapped = jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True
        )
        given = in_specs if isinstance(in_specs, tuple | list) else (in_specs,)

        def run(*args: Any) -> Any:
            for spec, arg in zip(given, args, strict=False):
                if isinstance(spec, PartitionSpec) and spec in (self.data_spec(), self.x_spec()):
                    for array in jax.tree.leaves(arg):
                        self.padded("batch", array.shape[0])  # raises where it does not split
            return mapped(*args)

        return run

    def key(self, key: jax.Array, like: jax.Array) -> jax.Array:
        """Derives a random key that differs where the sharding rules give devices other blocks.

        Devices that hold the same block get the same key, those with other blocks get others. So
        the draw depends on the mesh.

        Args:
          key: of `jax.random`, the same on all devices.
          like: x, whose shards say which devices have to differ.

        Returns:
          A key, of this device.
        """
        varying = collectives.varying(like)
        axes = () if self.mesh is None else tuple(a for a in self.mesh.axis_names if a in varying)
        return jax.random.fold_in(key, collectives.index(axes)) if axes else key


def _entry(axes: Axes) -> Any:
    return None if not axes else axes[0] if len(axes) == 1 else axes
