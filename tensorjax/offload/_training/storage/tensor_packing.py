"""Packing of a pytree into named tensors: large arrays alone, small ones in one tensor."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax.offload._store.disk.extents import ALIGN, PACKED, padded

# Bytes below which leaves are packed, for speed: a bias takes a store as much time as a matrix of a
# few pages. (The store itself packs tensors below 4096 bytes, to save disk space.)
SMALL = 64 * 1024


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Specification of one array of a pytree that is packed into tensors: path, shape and dtype."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one array of a pytree, by which it is packed with others or stored alone."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorPacking:
    """Packing of a pytree's arrays into a store's tensors: large ones alone, small ones together.

    Arrays below 64 KiB share one tensor, ``name/packed``; others have one each, ``name/path``.

    Args:
      name: what names of tensors begin with.
      tree: pytree of arrays, or of anything with shape and dtype.

    Attributes:
      leaves: what is in it, in JAX's order.
      small: those of them that share a tensor.
      specs: shape and dtype of every tensor, by its name.
    """

    PACKED = "packed"

    def __init__(self, name: str, tree: Any) -> None:
        found, self.tree = jax.tree_util.tree_flatten_with_path(tree)
        self.name = name
        self.leaves = tuple(_leaf(name, path, x) for path, x in found)
        self.nbytes = sum(leaf.nbytes for leaf in self.leaves)
        self.specs: dict[str, jax.ShapeDtypeStruct] = {}
        self._offsets: dict[int, int] = {}
        self._packed = f"{name}/{self.PACKED}"
        for number, leaf in enumerate(self.leaves):
            if leaf.nbytes < SMALL:
                self._offsets[number] = 0
            else:
                if (own := self._own(leaf)) in self.specs or own == self._packed:
                    raise ValueError(
                        f"{name}: expected paths that stay different where their parts are joined "
                        f"by dots, none of them {self.PACKED!r}; got {leaf.path!r}: rename it"
                    )
                self.specs[own] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        self.small = tuple(self.leaves[number] for number in self._offsets)
        *offsets, end = _offsets(self.small)
        self._offsets = dict(zip(self._offsets, offsets, strict=True))
        if self._offsets:  # all of them may be empty
            # Of whole blocks of the disk: groups share none.
            self.specs[self._packed] = jax.ShapeDtypeStruct((max(end, ALIGN),), np.uint8)

    @property
    def staged(self) -> int:
        """Bytes of staging memory that reading all packed tensors of a pytree takes."""
        return sum(padded(math.prod(x.shape) * x.dtype.itemsize) for x in self.specs.values())

    def tensors(self, arrays: Sequence[Any]) -> dict[str, np.ndarray]:
        """Packs the arrays of a pytree into tensors to be stored; large ones are not copied."""
        found: dict[str, np.ndarray] = {}
        if self._packed in self.specs:
            found[self._packed] = np.zeros(self.specs[self._packed].shape, np.uint8)
        for number, (leaf, x) in enumerate(zip(self.leaves, arrays, strict=True)):
            array = np.asarray(x)
            if number in self._offsets:
                start = self._offsets[number]
                flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                found[self._packed][start : start + leaf.nbytes] = flat
            else:
                found[self._own(leaf)] = array
        return found

    def arrays(self, tensors: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Unpacks the arrays of a pytree, as views, from the tensors that were stored."""
        found = []
        for number, leaf in enumerate(self.leaves):
            if number in self._offsets:
                start = self._offsets[number]
                part = tensors[self._packed][start : start + leaf.nbytes]
                found.append(part.view(leaf.dtype).reshape(leaf.shape))
            else:
                found.append(tensors[self._own(leaf)])
        return found

    def unflatten(self, arrays: Sequence[Any]) -> Any:
        """Builds a pytree from its unpacked arrays, in the order of `leaves`."""
        return jax.tree.unflatten(self.tree, list(arrays))

    def flatten(self, tree: Any) -> list[Any]:
        """Returns the arrays of a pytree to be packed; ValueError for others in shape or dtype."""
        leaves, structure = jax.tree.flatten(tree)
        if structure != self.tree:
            raise ValueError(f"{self.name}: expected the structure {self.tree}, got {structure}")
        for leaf, x in zip(self.leaves, leaves, strict=True):
            if tuple(x.shape) != leaf.shape or np.dtype(x.dtype) != leaf.dtype:
                wide = np.dtype(x.dtype).itemsize == 8 and leaf.dtype.itemsize == 4
                raise ValueError(
                    f"{self.name}/{leaf.path}: expected {leaf.dtype}{leaf.shape}, "
                    f"got {x.dtype}{tuple(x.shape)}"
                    + ("; cast it, or let JAX use 64 bits (JAX_ENABLE_X64=1)" if wide else "")
                )
        return leaves

    def _own(self, leaf: Leaf) -> str:
        return f"{self.name}/{leaf.path}"


def unpacked(memory: np.ndarray, small: Sequence[Leaf]) -> dict[str, np.ndarray]:
    """Returns the small arrays that are packed in one stored tensor, as views, by path."""
    starts = _offsets(small)
    parts = ((leaf, memory[start:]) for leaf, start in zip(small, starts, strict=False))
    return {
        leaf.path: part[: leaf.nbytes].view(leaf.dtype).reshape(leaf.shape) for leaf, part in parts
    }


def _offsets(small: Iterable[Leaf]) -> list[int]:
    """Returns the byte offsets of small arrays packed in one tensor, and its end."""
    found = [0]
    for leaf in small:
        found.append(-(-(found[-1] + leaf.nbytes) // PACKED) * PACKED)
    return found


def _leaf(name: str, path: Any, x: Any) -> Leaf:
    where = jax.tree_util.keystr(path, simple=True, separator=".") or "value"
    if not hasattr(x, "shape") or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        raise TypeError(
            f"{name}/{where}: expected an array of numbers, got {getattr(x, 'dtype', type(x))}; "
            "turn keys into numbers with jax.random.key_data"
        )
    return Leaf(where, tuple(x.shape), np.dtype(x.dtype))
