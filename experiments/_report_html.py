"""Report page of all results as one HTML file: cards, figures, tables that fold and sort."""

import base64
import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem;
       overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr));
         gap: 1rem; padding: 0; }
.cards li { list-style: none; border: 1px solid var(--line); border-radius: .5rem; padding: 1rem; }
.cards h3, .cards p { margin: 0 0 .4rem; }
.cards h3 { font-size: 1.05rem; } .cards b { font-weight: 600; }
code { font-size: .85em; background: var(--soft); padding: .1em .3em; border-radius: .3em; }
.cards code { display: block; white-space: nowrap; overflow-x: auto; font-size: .72em; }
.verdict { font-weight: 600; } .holds { color: #16803c; } .fails { color: #c2410c; }
details { margin: .75rem 0; } summary { cursor: pointer; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums;
        overflow-wrap: normal; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .75rem; text-align: left; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.figure { text-align: right; } .paper { opacity: .7; font-style: italic; }
figure { margin: 1rem 0; } img { max-width: 100%; background: #fff; } figcaption { opacity: .8; }
"""

# A click on a column's name sorts by it, a second one the other way; blank cells come last.
SCRIPT = """
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const head = button.closest("th"), body = head.closest("table").tBodies[0];
  const up = head.getAttribute("aria-sort") !== "ascending", at = head.cellIndex;
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const order = (a, b) => {
    const [x, y] = [a, b].map(row => row.cells[at].textContent);
    if (!x || !y) return !x - !y;
    const found = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return up ? found : -found;
  };
  body.append(...[...body.rows].sort(order));
};
"""

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|[-+]?inf", re.IGNORECASE)
MEASUREMENT = "measurement"  # the verdict where nothing is claimed


class Html:
    """Writer of the report page as one HTML file, which holds figures, style and script."""

    ending = ".html"

    def __init__(self) -> None:
        self.parts: list[str] = []

    def heading(self, level: int, text: str) -> None:
        self.parts.append(f'<h{level} id="{_anchor(text)}">{html.escape(text)}</h{level}>')

    def paragraph(self, text: str) -> None:
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def cards(self, cards: Sequence["tuple[str, ...]"]) -> None:
        self.parts.append(f'<ul class="cards">\n{"".join(map(_card, cards))}</ul>')

    def table(
        self,
        caption: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        published: Sequence[str] = (),
    ) -> None:
        body = [list(row) for row in rows]
        marks = [_mark([row[i] for row in body], c in published) for i, c in enumerate(columns)]
        names = [f'<button type="button">{html.escape(c)}</button>' for c in columns]
        lines = [_row("td", marks, map(html.escape, row)) for row in body]
        self.parts.append(
            f"<details><summary>{html.escape(caption)}</summary>"
            f'<div class="wide"><table><thead>{_row("th", marks, names)}</thead>\n<tbody>\n'
            + "\n".join(lines)
            + "\n</tbody></table></div></details>"
        )

    def figure(self, path: Path, caption: str) -> None:
        data, text = base64.b64encode(path.read_bytes()).decode(), html.escape(caption)
        self.parts.append(
            f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
            f"<figcaption>{text}</figcaption></figure>"
        )

    def page(self) -> str:
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width, '
            f'initial-scale=1"><title>tensorjax results</title><style>{STYLE}</style>'
        )
        body = "\n".join(self.parts)
        return (
            f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n'
            f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
        )


def _card(card: "tuple[str, ...]") -> str:
    _, title, claim, ours, basis, verdict, command = map(html.escape, card)
    kind = {"holds": "holds", "does": "fails"}.get(verdict.split()[0], "")
    what = "Measures" if verdict == MEASUREMENT else "Claim"
    said = {what: claim, "Ours": ours, "Basis": basis}
    lines = "".join(f"<p><b>{label}</b>: {text}</p>" for label, text in said.items())
    return (
        f'<li><h3><a href="#{_anchor(card[1])}">{title}</a></h3>'
        f'<p class="verdict {kind}">{verdict}</p>{lines}<p><code>{command}</code></p></li>\n'
    )


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _mark(cells: Sequence[str], published: bool) -> str:
    """Returns the HTML class attribute of a table column: numbers are aligned to the right."""
    told = [cell for cell in cells if cell]
    found = ["figure"] if told and all(map(_NUMBER.fullmatch, told)) else []
    found += ["paper"] if published else []
    return f' class="{" ".join(found)}"' if found else ""


def _row(tag: str, marks: Sequence[str], cells: Iterable[str]) -> str:
    inner = (f"<{tag}{m}>{cell}</{tag}>" for m, cell in zip(marks, cells, strict=True))
    return f"<tr>{''.join(inner)}</tr>"
