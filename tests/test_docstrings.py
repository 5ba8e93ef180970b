"""Docstrings of all that is public: arguments, results, errors, an example and a source."""

import ast
import builtins
import dataclasses
import doctest
import inspect
import pydoc
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import public_surface
from tests.public_surface import Public

RIDDLES = ("What", "Those", "Of", "Whose", "How", "Where")
SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Warns|Examples?|Sources?):")
ENTRY = re.compile(r"^(\*{0,2}\w+(?:,\s+\*{0,2}\w+)*):", re.MULTILINE)
NEVER_RAISE = ("dequantize", "labels")  # take any tree
packages = pytest.mark.parametrize("package", public_surface.PACKAGES)
# Packages with so many names that `help` would print thousands of lines.
TABLES = (
    "linalg", "mera", "models.gpt2", "nn", "offload", "optim", "parallel", "pde", "pde.problems",
    "sketch", "tt", "tt.functions", "tucker",
)  # fmt: skip


@packages
def test_public_functions_name_arguments_results_errors_example_and_source(package):
    found = [f"{f.name}: {fault}" for f in public_surface.functions(package) for fault in faults(f)]
    assert not found, "\n".join(found)


@packages
def test_examples_run_as_they_stand(package):
    """Every name in the example of a function or class is imported or assigned there."""
    unknown = {f.name: strangers(f.function) for f in public_surface.functions(package)}
    unknown |= {kind.__name__: strangers(kind) for kind in public_surface.classes(package)}
    found = [f"{name}: {names}" for name, names in unknown.items() if names]
    assert not found, "\n".join(found)


@packages
def test_public_methods_name_arguments_and_results(package):
    """Those of a method of a base class count for what overrides it."""
    module = public_surface.module(package)
    found = [
        f"{m.name}: {fault}"
        for m in public_surface.methods(package)
        if is_written(m.function) and not m.name.endswith(".__init__")
        for fault in method_faults(m, getattr(module, m.name.partition(".")[0]))
    ]
    assert not found, "\n".join(found)


@packages
def test_public_classes_have_an_example_and_name_their_fields(package):
    found = [
        f"{kind.__name__}: {fault}"
        for kind in public_surface.classes(package)
        for fault in class_faults(kind)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", TABLES)
def test_help_of_a_package_is_its_table_of_names(package):
    """Not the documentation of everything in it, which `help` of each name prints as ever."""
    module = public_surface.module(package)
    text = pydoc.plain(pydoc.render_doc(module))
    assert len(text.splitlines()) < 130
    assert set(module.__all__) == set(dir(module))
    assert set(module.__all__) <= set(re.findall(r"\w+", inspect.getdoc(module) or ""))
    name = module.__all__[-1]
    full = (inspect.getdoc(getattr(module, name)) or "").splitlines()
    assert all(line in pydoc.render_doc(getattr(module, name)) for line in full)
    assert name in dict(inspect.getmembers(module))


def faults(f: Public) -> Iterator[str]:
    text = inspect.getdoc(f.function) or ""
    sections = parsed(text)
    yield from first_line_faults(text)
    yield from argument_faults(f, entries(sections.get("Args", "")))
    if f.signature.return_annotation not in (None, "None") and "Returns" not in sections:
        yield "no Returns"
    if ">>>" not in text:
        yield "no example"
    if not {"Source", "Sources"} & sections.keys():
        yield "no Source"
    if f.signature.parameters and f.name not in NEVER_RAISE and "Raises" not in sections:
        yield "no Raises"


def method_faults(m: Public, kind: type) -> Iterator[str]:
    yield from first_line_faults(inspect.getdoc(m.function) or "")
    name = m.name.partition(".")[2]
    docs = [inspect.getdoc(vars(k)[name]) or "" for k in kind.__mro__ if name in vars(k)]
    sections = [parsed(text) for text in docs]
    yield from argument_faults(m, set().union(*(entries(s.get("Args", "")) for s in sections)))
    takes = m.signature.parameters and m.signature.return_annotation not in (None, "None")
    if takes and not any({"Returns", "Yields"} & s.keys() for s in sections):
        yield "no Returns"


def argument_faults(f: Public, known: set[str]) -> Iterator[str]:
    missing = [name for name in f.signature.parameters if name not in known]
    if missing:
        yield f"not in Args: {', '.join(missing)}"


def first_line_faults(text: str) -> Iterator[str]:
    first = text.partition("\n")[0]
    if not first.endswith(".") or len(first) > 100 or first.split()[0] in RIDDLES:
        yield f"first line {first!r}"


def class_faults(kind: type) -> Iterator[str]:
    yield from first_line_faults(inspect.getdoc(kind) or "")
    if ">>>" not in (kind.__doc__ or ""):  # one of its own: that of a base class shows the base
        yield "no example"
    own = [k for k in kind.__mro__ if k.__module__.startswith("tensorjax")]
    sections = [parsed(vars(k).get("__doc__") or "") for k in own]
    known = set().union(*(entries(s.get(n, "")) for s in sections for n in ("Args", "Attributes")))
    names = fields(kind, own)
    if any("Args" in s for s in sections):
        names |= set(Public("", kind.__init__, True).signature.parameters)  # type: ignore[misc]
    if missing := sorted(name for name in names - known if not name.startswith("_")):
        yield f"neither in Args nor in Attributes: {', '.join(missing)}"


def fields(kind: Any, own: list[type]) -> set[str]:
    """Returns the fields of a dataclass, those of other packages' left out, or a named tuple."""
    if not dataclasses.is_dataclass(kind):
        return set(getattr(kind, "_fields", ()))
    declared = {name for k in own for name in vars(k).get("__annotations__", {})}
    return {f.name for f in dataclasses.fields(kind) if f.init} & declared


def parsed(text: str) -> dict[str, str]:
    """Splits a docstring into its sections, by name."""
    found: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(text).splitlines():
        if line and not line.startswith(" "):
            head = SECTION.match(line)
            name = head[1] if head else ""
        found[name] = found.get(name, "") + line + "\n"
    return found


def entries(section: str) -> set[str]:
    """Returns the names that a section of arguments explains, one or more in an entry."""
    heads = ENTRY.findall(textwrap.dedent(section.partition("\n")[2]))
    return {name.strip().lstrip("*") for head in heads for name in head.split(",")}


def is_written(function: Callable[..., Any]) -> bool:
    """Whether a function has a source, which the constructors of dataclasses have not."""
    return "tensorjax" in inspect.unwrap(function).__code__.co_filename


def strangers(function: Callable[..., Any]) -> list[str]:
    """Returns the names that an example uses and neither imports nor assigns."""
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(function) or "")
    nodes = list(ast.walk(ast.parse("".join(e.source for e in examples))))
    known = set(dir(builtins))
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            known.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
    used = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return sorted(set(used) - known)
