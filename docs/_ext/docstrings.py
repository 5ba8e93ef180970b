"""Converts docstrings in Google's style to Markdown."""

import inspect
import re
from collections.abc import Callable

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Warns", "Example", "Examples")
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
        role = "ref" if (target or "").startswith("module-") else "py:obj"
        parts[k] = f"{{{role}}}`{code} <{target}>`" if target else f"`` {code} ``"
    return "".join(parts)


def sections(text: str) -> list[tuple[str, list[str]]]:
    """Parts of a docstring: name ("" for prose) and lines without the indentation.

    A line that ends with a colon, with indented lines below it, names a part.
    """
    lines = inspect.cleandoc(text).splitlines() or [""]
    found: list[tuple[str, list[str]]] = [("", [])]
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        flush = bool(line) and not line[0].isspace()
        if flush and line.endswith(":") and below.startswith("  "):
            found.append((line[:-1], []))
        elif flush and found[-1][0]:
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


def prose(body: str, link: Link) -> str:
    """Paragraphs, with the examples that stand between them as code."""
    parts: list[tuple[bool, list[str]]] = [(False, [])]
    for line in body.splitlines():
        code, lines = parts[-1]
        indented = bool(lines) and lines[0][0:1].isspace()
        if not code and line.lstrip().startswith(">>>"):
            parts.append((True, []))
        elif code and (not line.strip() or (indented and not line[0].isspace())):
            parts.append((False, []))
        parts[-1][1].append(line)
    out = []
    for code, lines in parts:
        text = inspect.cleandoc("\n" + "\n".join(lines)) if code else "\n".join(lines).strip("\n")
        if text:
            out.append(f"```pycon\n{text}\n```" if code else escaped(text, link))
    return re.sub(r"^Source: ", "**Source.** ", "\n\n".join(out), flags=re.MULTILINE)


def block(name: str, body: str, link: Link) -> str:
    """A named part that is none of Google's: an example, a list of words, or text as it stands."""
    if ">>>" in body:
        return f"{escaped(name, link)}:\n\n{prose(body, link)}"
    entries = items(body.splitlines())
    if all(ITEM.match(entry) for entry in entries):
        return "\n".join([f"**{name}**", "", *(bullet(entry, link) for entry in entries)])
    return f"{escaped(name, link)}:\n\n```text\n{body}\n```"


def markdown(text: str, link: Link) -> str:
    """A docstring as Markdown: sections as lists, examples as code."""
    out: list[str] = []
    for name, lines in sections(text):
        body = "\n".join(lines).strip("\n")
        if not body:
            continue
        if name in ("", "Example", "Examples"):
            out.append(prose(body, link))
        elif name in ("Returns", "Yields"):
            out.append(f"**{name}.** {escaped(body, link)}")
        elif name in SECTIONS:
            out.append("\n".join([f"**{name}**", "", *(bullet(i, link) for i in items(lines))]))
        else:
            out.append(block(name, body, link))
    return "\n\n".join(out)
