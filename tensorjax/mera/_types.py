"""MERA types: pytrees of isometries and disentanglers, with their wiring as metadata."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.arithmetic_operators import Namespace, Scalable, floating
from tensorjax._formats.array_protocol_errors import NoArray
from tensorjax._formats.pytree_base import FrozenPytree, shown
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike, DType, DTypeLike
from tensorjax.mera._wiring import Wiring, check_wiring


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class Layer(
    NoArray,
    FrozenPytree,
    fields=("disentanglers", "isometries", "wiring"),
    static=("wiring",),
    encode=list,
    decode=lambda saved: Wiring(*map(tuple, saved)),
):
    """One layer of a MERA: disentanglers at the bottom, isometries above them.

    Attributes:
      disentanglers: arrays (bottom₁, bottom₂, top₁, top₂), orthonormal columns as matrices
        (bottom₁ bottom₂) × (top₁ top₂).
      isometries: arrays (bottom₁, …, bottom_k, top), one per block from left to right, orthonormal
        columns as matrices (bottom₁ ⋯ bottom_k) × top. k may differ from block to block; k = 1
        passes a site through.
      wiring: blocks and cuts, see `Wiring`.

    Args:
      disentanglers: as above; none at all makes the layer a tree.
      isometries: as above.
      cuts: the cut of each disentangler, 0 for that between the first two blocks. By default one
        after the other from 0; with as many disentanglers as blocks the last one closes the ring.
      wiring: in place of ``cuts``, as `dataclasses.replace` gives it; its cuts are taken.

    Raises:
      ValueError: shapes do not fit each other, or a site is touched twice.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import mera
      >>> mera.Layer([jnp.eye(4).reshape(2, 2, 2, 2)], [jnp.eye(4).reshape(2, 2, 4)] * 2)
      Layer((2, 2, 2, 2) -> (4, 4), 1 disentanglers)

    Source: Vidal (2007), see `MERA`.
    """

    disentanglers: tuple[jax.Array, ...]
    isometries: tuple[jax.Array, ...]
    wiring: Wiring
    dense_name: ClassVar[str] = "mera.to_dense, of a MERA"

    def __init__(
        self,
        disentanglers: Iterable[Any],
        isometries: Iterable[Any],
        cuts: Sequence[int] | None = None,
        *,
        wiring: Wiring | None = None,
    ):
        us = _arrays("disentanglers", disentanglers)
        ws = _arrays("isometries", isometries)
        if not ws:
            raise ValueError("isometries: expected one per block, got none")
        for k, u in enumerate(us):
            if u.ndim != 4:
                raise ValueError(
                    f"disentanglers[{k}]: expected shape (bottom₁, bottom₂, top₁, top₂), "
                    f"got {u.shape}"
                )
        for k, w in enumerate(ws):
            if w.ndim < 2:
                raise ValueError(
                    f"isometries[{k}]: expected shape (bottom₁, …, bottom_k, top), got {w.shape}"
                )
        if wiring is not None and not isinstance(wiring, Wiring):
            raise TypeError(f"wiring: expected a Wiring, got {_check.short(wiring)}")
        cuts = wiring.cuts if wiring is not None else range(len(us)) if cuts is None else cuts
        wiring = Wiring(
            tuple(w.ndim - 1 for w in ws),
            tuple(_check.integer("cuts", c, low=0) for c in _check.several("cuts", cuts, "sites")),
        )
        check_wiring(wiring, len(us))
        self._set(us, ws, wiring)
        _check_joints(self)

    @property
    def middle(self) -> tuple[int, ...]:
        """Dimensions of the legs between disentanglers and isometries of a MERA layer, per site."""
        arities = self.wiring.arities
        return tuple(
            n
            for w, k in zip(self.isometries, arities, strict=True)
            for n in w.shape[w.ndim - k - 1 : -1]
        )

    @property
    def bottom(self) -> tuple[int, ...]:
        """Dimensions of the bottom legs of a MERA layer, one per site."""
        sizes = list(self.middle)
        for u, pair in zip(self.disentanglers, self.wiring.pairs, strict=True):
            for site, n in zip(pair, u.shape[-4:-2], strict=True):
                sizes[site] = n
        return tuple(sizes)

    @property
    def top(self) -> tuple[int, ...]:
        """Dimensions of the top legs of a MERA layer, one per isometry."""
        return tuple(w.shape[-1] for w in self.isometries)

    @shown
    def __repr__(self) -> str:
        ring = ", periodic" if self.wiring.periodic else ""
        return f"Layer({self.bottom} -> {self.top}, {len(self.disentanglers)} disentanglers{ring})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class MERA(Scalable, FrozenPytree, fields=("layers", "top")):
    """Multiscale entanglement renormalisation ansatz: layers from the bottom up, and a top tensor.

    Every layer maps a state of its top legs to one of its bottom legs: isometries first, then
    disentanglers. Both are isometric, so norms are those of the top tensor.

    Attributes:
      layers: tuple of `Layer`; the first one has the sites of the tensor at its bottom.
      top: (s_1, …, s_p), a leg per block of the last layer.

    Args:
      layers: as above; a pair (disentanglers, isometries) stands for a layer.
      top: as above.
      check: whether concrete isometries and disentanglers must prove orthonormal columns.

    Raises:
      ValueError: layers do not fit each other, or columns are not orthonormal. TypeError: integers.

    Operators are NumPy's: ``*`` and ``/`` are by a scalar, which the top tensor carries.

    Example:
      >>> import jax
      >>> from tensorjax import mera
      >>> mera.random(jax.random.key(0), (2,) * 8, 2)
      MERA(shape=(2, 2, 2, 2, 2, 2, 2, 2), layers=2, top=(2, 2), open, dtype=float32)

    Source: G. Vidal, "Entanglement renormalization", Phys. Rev. Lett. 99, 220405 (2007).
    """

    layers: tuple[Layer, ...]
    top: jax.Array
    dense_name: ClassVar[str] = "mera.to_dense"
    entrywise_name: ClassVar[str] = "tt.map({0}, mera.to_tt(m), tol=, key=)"
    _namespace = Namespace("tensorjax.mera")

    def __init__(self, layers: Iterable[Any], top: ArrayLike, *, check: bool = True):
        given = _check.several("layers", layers, "Layers")
        built = tuple(
            x if isinstance(x, Layer) else Layer(*_check.several(f"layers[{k}]", x, "arrays"))
            for k, x in enumerate(given)
        )
        array: jax.Array = _check.core("top", top)
        below = built[0].top if built else array.shape
        for k, layer in enumerate(built[1:], 1):
            if layer.bottom != below:
                raise ValueError(
                    f"layers[{k}]: expected the bottom legs {below} of the layer below's top, "
                    f"got {layer.bottom}"
                )
            below = layer.top
        if array.shape != below or array.ndim == 0:
            raise ValueError(
                f"top: expected shape {below} to fit the last layer, got {array.shape}"
            )
        self._set(built, array)
        if _check.flag("check", check) and not _is_abstract(self):
            _check_orthonormal(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Mode sizes (n_1, …, n_N) of the MERA."""
        return self.layers[0].bottom if self.layers else self.top.shape

    @property
    def order(self) -> int:
        """Number of sites N of the MERA."""
        return self.layers[0].wiring.length if self.layers else self.top.ndim

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """Dimensions of the top legs of every layer of the MERA, from the bottom up."""
        return tuple(layer.top for layer in self.layers)

    @property
    def boundary(self) -> str:
        """Boundary type of the MERA: "periodic" if some layer closes the ring, or "open"."""
        return "periodic" if any(x.wiring.periodic for x in self.layers) else "open"

    @property
    def dtype(self) -> DType:
        """Common dtype of the MERA's tensors, by JAX's promotion rules."""
        return jnp.result_type(*jax.tree.leaves(self))

    @property
    def size(self) -> int:
        """Number of stored elements in the MERA's disentanglers, isometries and top tensor."""
        return sum(math.prod(x.shape) for x in jax.tree.leaves(self))

    def astype(self, dtype: DTypeLike) -> "MERA":
        """Returns the MERA with every tensor cast to ``dtype``.

        Args:
          dtype: floating or complex.

        Returns:
          MERA of the same structure.

        Raises:
          TypeError: complex tensors and a real dtype; an integer dtype.
        """
        floating(self, dtype, "take tt.real or tt.imag of mera.to_tt(m)")
        return jax.tree.map(lambda x: x.astype(dtype), self)

    def _carry(self, f: Callable[[Any], Any], dtype: Any) -> "MERA":
        m = self if all(x.dtype == dtype for x in jax.tree.leaves(self)) else self.astype(dtype)
        return MERA._unchecked(m.layers, f(m.top))

    @shown
    def __repr__(self) -> str:
        sites = f"shape={self.shape}" if self.order <= 12 else f"order={self.order}"
        last = self.layers[-1].top if self.layers else self.top.shape
        return (
            f"MERA({sites}, layers={len(self.layers)}, top={last}, {self.boundary}, "
            f"dtype={jnp.dtype(self.dtype).name})"
        )


def _arrays(name: str, values: Iterable[Any]) -> tuple[jax.Array, ...]:
    return tuple(
        _check.core(f"{name}[{k}]", v) for k, v in enumerate(_check.several(name, values, "arrays"))
    )


def _check_joints(layer: Layer) -> None:
    sizes = layer.middle
    for k, (u, (i, j)) in enumerate(zip(layer.disentanglers, layer.wiring.pairs, strict=True)):
        if u.shape[2:] != (sizes[i], sizes[j]):
            raise ValueError(
                f"disentanglers[{k}]: expected top legs ({sizes[i]}, {sizes[j]}) to fit the "
                f"isometries at sites {i} and {j}, got {u.shape[2:]}"
            )


def _is_abstract(m: MERA) -> bool:
    return _check.is_traced(m) or any(
        isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(m)
    )


def as_matrices(m: MERA) -> list[tuple[str, jax.Array]]:
    """Lists a `MERA`'s disentanglers and isometries by name as matrices, for the type's checks."""
    out = []
    for k, layer in enumerate(m.layers):
        out += [
            (f"layers[{k}].disentanglers[{j}]", u.reshape(math.prod(u.shape[:2]), -1))
            for j, u in enumerate(layer.disentanglers)
        ]
        out += [
            (f"layers[{k}].isometries[{j}]", w.reshape(-1, w.shape[-1]))
            for j, w in enumerate(layer.isometries)
        ]
    return out


@placed
def _check_orthonormal(m: MERA) -> None:
    for name, matrix in as_matrices(m):
        a = np.asarray(matrix)
        a = a.astype(np.result_type(a.dtype if a.dtype.kind in "fc" else np.float32, np.float64))
        deviation = float(np.linalg.norm(a.conj().T @ a - np.eye(a.shape[1])))
        if not deviation <= 100 * linalg.epsilon(matrix.dtype) * a.shape[1] ** 0.5:
            raise ValueError(
                f"{name}: expected orthonormal columns, got a deviation ‖aᴴa − 1‖ of "
                f"{deviation:.2g}; orthonormalise it, for example by linalg.polar, "
                "or pass check=False"
            )


def single(name: str, m: Any) -> None:
    """Raises an error unless ``m`` is of the type `MERA`, and no batch of them."""
    if not isinstance(m, MERA):
        raise TypeError(
            f"{name}: expected a MERA, got {type(m).__name__}; build one with mera.random or "
            "convert.tt_to_mera"
        )
    _check.held(name, m, host=True)
    sites = len(m.layers[-1].isometries) if m.layers else m.top.ndim
    if m.top.ndim != sites:
        raise ValueError(
            f"{name}: expected one MERA, got a batch of them {m.top.shape[: m.top.ndim - sites]}; "
            "map the function over it with jax.vmap"
        )
