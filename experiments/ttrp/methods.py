"""Random maps under comparison: how each is drawn, and its look in figures."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tensorjax import sketch

Shape = tuple[int, ...]
_DRAWN_AT_ONCE = 2**24  # numbers


@dataclass(frozen=True, eq=False)
class Method:
    """Family of random maps: how to draw one, and its look in figures.

    Compared by identity, so that it can be a static argument.

    Attributes:
        name: As in the tables and legends.
        draw: From a key, the modes of the input and those of the output to a map.
        color: Of its lines; Okabe and Ito's colours, which colour-blind readers tell apart.
        marker: Of its points.
        line: Style of its lines.
    """

    name: str
    draw: Callable[[Any, Shape, Shape], Any]
    color: str
    marker: str
    line: str = "-"

    @property
    def style(self) -> dict[str, Any]:
        """Returns keyword arguments for Matplotlib's ``plot``."""
        look = {"label": self.name, "color": self.color, "marker": self.marker}
        return look | {"linestyle": self.line, "linewidth": 1.3, "markersize": 4.5}


def _method(name: str, look: str, draw: Any, **options: Any) -> Method:
    """Builds a method from its name, its look "color marker line", and the map's options."""
    return Method(name, functools.partial(draw, **options), *look.split())


_SIGNS = {"distribution": "rademacher"}
GAUSSIAN = _method("Gaussian", "#000000 o -", sketch.gaussian)
SPARSE = _method("sparse, s = 3", "#7f7f7f s --", sketch.sparse)
VERY_SPARSE = _method("very sparse, s = √N", "#7f7f7f v :", sketch.sparse, s="sqrt")
TRP_GAUSSIAN = _method("TRP Gaussian", "#56b4e9 ^ --", sketch.khatri_rao)
TRP = _method("TRP Rademacher", "#0072b2 ^ -", sketch.khatri_rao, **_SIGNS)
TRP_T = _method("TRP_T Rademacher, T = 5", "#0072b2 < :", sketch.khatri_rao, averages=5, **_SIGNS)
TT_ROWS = _method("f_TT(2)", "#009e73 P -.", sketch.tt_rows, rank=2)
CP_ROWS = _method("f_CP(2)", "#cc79a7 X -.", sketch.cp_rows, rank=2)
TTRP = _method("TTRP Rademacher", "#d55e00 D -", sketch.ttrp)
TTRP_GAUSSIAN = _method("TTRP Gaussian", "#e69f00 d --", sketch.ttrp, distribution="gaussian")
TTRP_2 = _method("TTRP Rademacher, TT-rank 2", "#d55e00 p :", sketch.ttrp, rank=2)

DENSE = (GAUSSIAN, SPARSE, VERY_SPARSE)
ROWS = (TRP_GAUSSIAN, TRP, TRP_T, TT_ROWS, CP_ROWS)
KRONECKER = (TTRP, TTRP_GAUSSIAN, TTRP_2)
METHODS = (*DENSE, *ROWS, *KRONECKER)


def factors(size: int, count: int) -> Shape:
    """Returns the factorisation of ``size`` with the least sum, largest factor first.

    >>> factors(24, 3), factors(2500, 3), factors(7, 2)
    ((4, 3, 2), (25, 10, 10), (7, 1))
    """
    if count == 1:
        return (size,)
    divisors = [a for a in range(1, size + 1) if size % a == 0]
    options = ((a, *factors(size // a, count - 1)) for a in divisors)
    return min((o for o in options if list(o) == sorted(o, reverse=True)), key=sum)


def times(shape: Sequence[int]) -> str:
    """Formats a shape as text, such as 4·3·2."""
    return "·".join(map(str, shape))


def outline(method: Method, in_shape: Shape, out_shape: Shape) -> Any:
    """Returns the shapes of a map's arrays without drawing it."""
    return jax.eval_shape(lambda key: method.draw(key, in_shape, out_shape), jax.random.key(0))


def storage(method: Method, in_shape: Shape, out_shape: Shape) -> int:
    """Computes how many random numbers a map stores; for a sparse map the expected nonzeros."""
    p = outline(method, in_shape, out_shape)
    if isinstance(p, sketch.Sparse):
        return round(p.out_size * p.in_size / p.law.fourth_moment)
    return p.size


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _drawn(method: Method, in_shape: Shape, out_shape: Shape, keys: jax.Array) -> Any:
    return jax.vmap(lambda key: method.draw(key, in_shape, out_shape))(keys)


@functools.partial(jax.jit, static_argnums=0)
def _over_maps(function: Callable[[Any, Any], jax.Array], maps: Any, x: Any) -> jax.Array:
    return jax.vmap(function, in_axes=(0, None))(maps, x)


def groups(method: Method, shapes: tuple[Shape, Shape], keys: jax.Array) -> Iterator[Any]:
    """Yields the maps of all keys in batches of at most 64 MiB, drawn by one program.

    Args:
        method: what to draw.
        shapes: modes of the input and of the output.
        keys: one for each draw.
    """
    held = jax.tree.leaves(outline(method, *shapes))
    room = max(1, _DRAWN_AT_ONCE // sum(math.prod(leaf.shape) for leaf in held))
    # A divisor of the count, or the remainder would be compiled once more.
    at_once = max(n for n in range(1, min(room, len(keys)) + 1) if len(keys) % n == 0)
    for start in range(0, len(keys), at_once):
        yield _drawn(method, *shapes, keys[start : start + at_once])


def single(method: Method, shapes: tuple[Shape, Shape], keys: jax.Array) -> Iterator[Any]:
    """Yields the maps of all keys one by one."""
    for maps in groups(method, shapes, keys):
        host = jax.tree.map(np.asarray, maps)
        for i in range(len(jax.tree.leaves(host)[0])):
            yield jax.tree.map(lambda a, i=i: a[i], host)


def over_draws(
    function: Callable[[Any, Any], jax.Array],
    method: Method,
    shapes: tuple[Shape, Shape],
    keys: jax.Array,
    x: Any,
) -> np.ndarray:
    """Evaluates ``function(map, x)`` for the map of each key, vectorised over maps.

    Args:
        function: of a map and ``x``, such as ``sketch.apply``.
        method: what to draw.
        shapes: modes of the input and of the output.
        keys: one for each draw.
        x: passed on.

    Returns:
        The values, stacked on a leading axis.
    """
    values = [_over_maps(function, maps, x) for maps in groups(method, shapes, keys)]
    return np.concatenate([np.asarray(v) for v in values])


def moments(values: np.ndarray) -> dict[str, float]:
    """Computes mean and variance of a sample, each with its standard error."""
    values = values.astype(np.float64)
    mean, variance, n = values.mean(), values.var(ddof=1), values.size
    fourth = np.mean((values - mean) ** 4)
    spread = max(fourth - variance**2 * (n - 3) / (n - 1), 0.0) / n
    return {
        "mean": float(mean),
        "mean ±": float(np.sqrt(variance / n)),
        "variance": float(variance),
        "variance ±": float(np.sqrt(spread)),
    }
