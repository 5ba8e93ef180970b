"""Diagrams of tensor networks: trains, TT-matrices, Tucker tensors and MERAs."""

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Circle, Polygon, Rectangle

from tensorjax._formats.trains import TT, TTMatrix
from tensorjax.mera import MERA, causal_cone
from tensorjax.plot._axes import COLOURS, INK, PALE, axes_of
from tensorjax.tucker import Tucker

_Point = tuple[float, float]
_RADIUS, _LABELLED = 0.22, 32  # of a node; modes up to which sizes are written


def network(
    t: TT | TTMatrix | Tucker | MERA,
    *,
    sites: Sequence[int] | None = None,
    labels: bool | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws the diagram of a tensor network: a node for each core, a line for each index.

    Lines are as thick as log₂ of the size of the index, and sizes are written beside them. Rows of
    TT-matrices point up, columns down. Of a MERA the sites are at the bottom; squares are
    disentanglers, triangles isometries, and the bar is the top tensor.

    Args:
      t: TT, TTMatrix, Tucker or MERA; also of `jax.ShapeDtypeStruct`, for values are not read.
      sites: of a MERA, whose causal cone is coloured: the tensors on which an expectation value
        there depends.
      labels: whether sizes are written; if None, for 32 modes at most.
      ax: to draw into; new axes if None.

    Returns:
      The axes, without frame, of one scale in both directions.

    Raises:
      TypeError: another kind of tensor, or ``ax`` that are no axes. ValueError: ``sites`` of what
        is no MERA, or out of range.

    Example:
      >>> import jax
      >>> import matplotlib
      >>> matplotlib.use("Agg")
      >>> from tensorjax import mera, plot
      >>> m = mera.random(jax.random.key(0), (2,) * 8, 2)
      >>> plot.network(m, sites=(3,)).get_title()
      'MERA, 116 entries'

    Source: diagrams as R. Penrose (1971) introduced them; the cone of Vidal (2007), see
    `mera.causal_cone`.
    """
    if not isinstance(t, TT | TTMatrix | Tucker | MERA):
        raise TypeError(f"t: expected a TT, TTMatrix, Tucker or MERA, got {type(t).__name__}")
    if sites is not None and not isinstance(t, MERA):
        raise ValueError(f"sites: only a MERA has a causal cone, got a {type(t).__name__}")
    modes = t.order if isinstance(t, TTMatrix) else len(t.shape)
    cone = causal_cone(t, sites) if sites is not None and isinstance(t, MERA) else None
    drawing = _Drawing(
        axes_of(ax, min(max(3.0, 0.8 * modes), 16.0), 4.2 if isinstance(t, MERA) else 2.6),
        modes <= _LABELLED if labels is None else labels,
    )
    if isinstance(t, MERA):
        _mera(drawing, t, cone)
    elif isinstance(t, Tucker):
        _tucker(drawing, t)
    else:
        _train(drawing, [c.shape for c in t.cores], 0.0)
    return drawing.finished(type(t).__name__, t.size)


class _Drawing:
    """Diagram of a tensor network that is drawn into Matplotlib axes."""

    def __init__(self, ax: Axes, labelled: bool):
        self._ax, self._labelled = ax, labelled

    def line(self, a: _Point, b: _Point, size: int, *, at: float = 0.5) -> None:
        """Draws an index of a network as a line from a to b, its size beside it at a share."""
        (x, y), (z, w) = a, b
        self._ax.plot((x, z), (y, w), color=INK, lw=0.6 + 0.5 * math.log2(max(size, 1)), zorder=1)
        if self._labelled:
            where = x + at * (z - x) + (0.1 if x == z else 0.0), y + at * (w - y) + 0.12 * (x != z)
            side = "left" if x == z else "center"
            self._ax.text(*where, str(size), ha=side, va="center", fontsize=7, color=INK)

    def node(self, at: _Point, colour: str = COLOURS[0]) -> None:
        self._ax.add_patch(Circle(at, _RADIUS, fc=colour, ec=INK, zorder=2))

    def box(self, left: float, right: float, y: float, colour: str, height: float = 0.36) -> None:
        corner = (left, y - height / 2)
        self._ax.add_patch(Rectangle(corner, right - left, height, fc=colour, ec=INK, zorder=2))

    def triangle(self, left: float, right: float, y: float, colour: str) -> None:
        corners = [(left, y - 0.2), (right, y - 0.2), ((left + right) / 2, y + 0.25)]
        self._ax.add_patch(Polygon(corners, fc=colour, ec=INK, zorder=2))

    def finished(self, kind: str, entries: int) -> Axes:
        self._ax.set_aspect("equal")
        self._ax.margins(0.05)
        self._ax.autoscale_view()
        self._ax.axis("off")
        self._ax.set_title(f"{kind}, {entries:,} entries", fontsize=9)
        return self._ax


def _train(drawing: _Drawing, shapes: Iterable[Sequence[int]], y: float, legs: bool = True) -> None:
    """Draws a train or TT-matrix into a network diagram: cores in a row, legs for the modes.

    Of (r, n, s) down; of (r, m, n, s) m up and n down.
    """
    for k, (left, *sizes, _) in enumerate(shapes):
        drawing.node((k, y))
        if k:
            drawing.line((k - 1, y), (k, y), left)
        if legs:
            drawing.line((k, y), (k, y - 0.7), sizes[-1], at=0.8)
        if len(sizes) == 2:
            drawing.line((k, y), (k, y + 0.7), sizes[0], at=0.8)


def _tucker(drawing: _Drawing, t: Tucker) -> None:
    if isinstance(t.core, TT):
        _train(drawing, [c.shape for c in t.core.cores], 1.0, legs=False)
    else:
        drawing.box(-0.3, len(t.factors) - 0.7, 1.0, COLOURS[0])
    for k, factor in enumerate(t.factors):
        drawing.line((k, 1.0), (k, 0.0), factor.shape[1])
        drawing.line((k, 0.0), (k, -0.7), factor.shape[0], at=0.8)
        drawing.node((k, 0.0), COLOURS[1])


def _mera(drawing: _Drawing, m: MERA, cone: Sequence[tuple[Sequence[int], ...]] | None) -> None:
    xs, y = [float(k) for k in range(len(m.shape))], 0.0
    width = 0.3
    for depth, layer in enumerate(m.layers):
        inside = cone[depth] if cone is not None else None
        for x, size in zip(xs, layer.bottom, strict=True):
            drawing.line((x, y), (x, y + 1.5), size, at=0.12)
        for j, (a, b) in enumerate(layer.wiring.pairs):
            colour = _shade(COLOURS[2], inside and j in inside[0], cone)
            ends = [(xs[a] - width, xs[b] + width)]
            if b < a:  # of a ring: half at each end
                ends = [(xs[a] - width, xs[a] + 0.5), (xs[b] - 0.5, xs[b] + width)]
            for left, right in ends:
                drawing.box(left, right, y + 0.7, colour)
        above = []
        for j, block in enumerate(layer.wiring.blocks):
            colour = _shade(COLOURS[0], inside and j in inside[1], cone)
            drawing.triangle(xs[block[0]] - width, xs[block[-1]] + width, y + 1.5, colour)
            above.append((xs[block[0]] + xs[block[-1]]) / 2)
        xs, y = above, y + 1.7
    for x, size in zip(xs, m.top.shape, strict=True):
        drawing.line((x, y), (x, y + 0.8), size, at=0.4)
    drawing.box(xs[0] - width, xs[-1] + width, y + 0.8, COLOURS[1])


def _shade(colour: str, inside: object, cone: object) -> str:
    return colour if cone is None or inside else PALE
