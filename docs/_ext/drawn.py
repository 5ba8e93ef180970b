"""Draws Mermaid flowcharts as SVG and formulas as MathML, without scripts or network."""

import re
from html import escape
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WIDTH, HEIGHT, GAP_X, GAP_Y = 118, 34, 22, 52


def layers(names: list[str], arrows: list[tuple[str, str]]) -> dict[str, int]:
    """The layer of every node: one below the lowest of those with an arrow to it."""
    depth = dict.fromkeys(names, 0)
    for _ in names:
        for above, below in arrows:
            depth[below] = max(depth[below], depth[above] + 1)
    return depth


def placed(depth: dict[str, int], arrows: list[tuple[str, str]]) -> dict[str, float]:
    """The place of every node in its layer, near the mean of those above."""
    rows: dict[int, list[str]] = {}
    for name in depth:
        rows.setdefault(depth[name], []).append(name)
    widest = max(len(row) for row in rows.values())
    place: dict[str, float] = {}
    for _, row in sorted(rows.items()):
        above = {n: [place[a] for a, b in arrows if b == n and a in place] for n in row}
        row.sort(key=lambda n: sum(above[n]) / len(above[n]) if above[n] else 0)
        place |= {n: (k + 0.5) * widest / len(row) for k, n in enumerate(row)}
    return place


def arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Curve from the lower edge of a node to the upper edge of one below it."""
    (x0, y0), (x1, y1) = start, end
    top, bottom = y0 + HEIGHT / 2, y1 - HEIGHT / 2
    middle = (top + bottom) / 2
    curve = f"{x0:.0f},{middle:.0f} {x1:.0f},{middle:.0f} {x1:.0f},{bottom:.0f}"
    return f'<path d="M{x0:.0f},{top:.0f} C{curve}"/>'


def box(center: tuple[float, float], label: str) -> str:
    """Node with its label."""
    x, y = center
    corner = f'x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.0f}" rx="5"'
    rectangle = f'<rect {corner} width="{WIDTH}" height="{HEIGHT}"/>'
    return f'{rectangle}<text x="{x:.0f}" y="{y + 5:.0f}">{escape(label)}</text>'


def svg(text: str) -> str:
    """A picture of a flowchart with nodes `a["label"]` and arrows `a --> b`."""
    labels = dict(re.findall(r'^\s*(\w+)\["(.+?)"\]$', text, re.MULTILINE))
    arrows = re.findall(r"^\s*(\w+) --> (\w+)$", text, re.MULTILINE)
    depth = layers(list(labels), arrows)
    place = placed(depth, arrows)
    at = {n: (place[n] * (WIDTH + GAP_X), depth[n] * (HEIGHT + GAP_Y) + HEIGHT) for n in labels}
    width = max(x for x, _ in at.values()) + WIDTH
    height = max(y for _, y in at.values()) + HEIGHT
    head = (
        f'<svg class="flowchart" role="img" aria-label="Flowchart of imports" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: {width:.0f}px">'
    )
    lines = [arrow(at[a], at[b]) for a, b in arrows] + [box(at[n], labels[n]) for n in labels]
    return "\n".join([head, *lines, "</svg>"])


def table(text: str) -> list[str]:
    """A flowchart with labels on its arrows, `a -- "label" --> b`, as a table in Markdown."""
    rows = re.findall(r'^\s*(\w+) -- "(.+?)" --> (\w+)', text, re.MULTILINE)
    return ["| from | by | to |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]


class Mermaid(SphinxDirective):
    """Flowchart: a picture, or a table where arrows have labels, as circles may be among them."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Draws the content."""
        text = "\n".join(self.content)
        if '" -->' not in text:
            return [nodes.raw("", svg(text), format="html")]
        holder = nodes.container()
        self.state.nested_parse(StringList(table(text), "<flowchart>"), 0, holder)
        return holder.children


def mathml(text: str, as_block: bool) -> str:
    """A formula as MathML; as it is written where docutils cannot read it."""
    try:
        return tex2mathml(re.sub(r"\\dots\b", r"\\ldots", text), as_block=as_block)
    except MathError:
        return f"<code>{escape(text)}</code>"


def inline(translator: Any, node: nodes.Element) -> None:
    """Writes a formula within a line."""
    translator.body.append(mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def display(translator: Any, node: nodes.Element) -> None:
    """Writes a formula of its own."""
    translator.body.append(f'<div class="formula">{mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive and the renderer."""
    app.add_directive("mermaid", Mermaid)
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
