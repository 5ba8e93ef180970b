"""Converts docstrings in Google's style to Markdown."""

import inspect
import re
from collections.abc import Callable

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example", "Examples")
SPAN = re.compile(r"(``.+?``|`[^`\n]+?`)", re.DOTALL)
ITEM = re.compile(r"(\*{0,2}\w[\w.]*(?:, \*{0,2}\w[\w.]*)*)(?: \([^)]*\))?: (?=\S)")
Link = Callable[[str], str | None]


def first_sentence(text: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())


def escaped(text: str, link: Link) -> str:
    """Text in which only code is markup; `link` gives the target of a name in backquotes."""
    parts = SPAN.split(text)
    for k, part in enumerate(parts):
        if k % 2 == 0:
            plain = re.sub(r"([\\*_<\[\]${}~])", r"\\\1", part)
            parts[k] = re.sub(r"^(\s*)([#%+=|>])", r"\1\\\2", plain, flags=re.MULTILINE)
            continue
        code = part.strip("`")
        target = link(code) if not part.startswith("``") else None
        parts[k] = f"{{py:obj}}`{code} <{target}>`" if target else f"`` {code} ``"
    return "".join(parts)


def sections(text: str) -> list[tuple[str, list[str]]]:
    """Parts of a docstring: name ("" for prose) and lines without the indentation."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in inspect.cleandoc(text).splitlines():
        if line.rstrip(":") in SECTIONS and line.endswith(":"):
            found.append((line[:-1], []))
        elif line and not line[0].isspace() and found[-1][0]:
            found.append(("", [line]))
        else:
            found[-1][1].append(line)
    return [(name, inspect.cleandoc("\n" + "\n".join(body)).splitlines()) for name, body in found]


def items(lines: list[str]) -> list[str]:
    """Entries of a section: a line that is not indented begins one."""
    found: list[str] = []
    for line in lines:
        if found and (not line or line[0].isspace()):
            found[-1] += "\n" + line.strip()
        else:
            found.append(line)
    return found


def bullet(item: str, link: Link) -> str:
    """An entry of a list, its name as code where it has one."""
    name = ITEM.match(item)
    head = f"- `{name[0].rstrip(': ')}`: " if name else "- "
    body = escaped(item[name.end() :] if name else item, link)
    return head + body.replace("\n", "\n  ")


def markdown(text: str, link: Link) -> str:
    """A docstring as Markdown: sections as lists, examples as code."""
    out: list[str] = []
    for name, lines in sections(text):
        body = "\n".join(lines).strip("\n")
        if not body:
            continue
        if name.startswith("Example"):
            out.append(f"```pycon\n{body}\n```")
        elif name in ("Returns", "Yields"):
            out.append(f"**{name}.** {escaped(body, link)}")
        elif name:
            out.append("\n".join([f"**{name}**", "", *(bullet(i, link) for i in items(lines))]))
        else:
            prose = escaped(body, link)
            out.append(re.sub(r"^Source: ", "**Source.** ", prose, flags=re.MULTILINE))
    return "\n\n".join(out)
