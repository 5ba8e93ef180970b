"""Directive `public`: table of public names with their first sentences, then an entry for each.

    :::{public} tt
    round orthogonalize trim
    :::

Directive `package`: the docstring of a package, but for its first sentence.

An object that several packages export has one entry, in the first of `public_names.PACKAGES`.
"""

import ast
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import docstrings
from docstrings import first_sentence, markdown
from docutils import nodes
from docutils.statemachine import StringList
from public_names import PACKAGES, full
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


@functools.cache
def objects() -> dict[str, Any]:
    """Every public object by its full name."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(full(package))
        found |= {f"{full(package)}.{name}": getattr(module, name) for name in module.__all__}
    return found


@functools.cache
def homes() -> dict[int, str]:
    """The full name under which an object has its entry, by identity."""
    found: dict[int, str] = {}
    for name, value in objects().items():
        found.setdefault(id(value), name)
    return found


def home(name: str) -> str:
    """The full name under which the object of a full name has its entry."""
    value = objects()[name]
    shared = inspect.isclass(value) or inspect.isfunction(value)
    return homes()[id(value)] if shared else name


def is_documented(value: Any) -> bool:
    """Whether a docstring is the object's own: classes and functions, no constants or aliases."""
    return inspect.isclass(value) or inspect.isfunction(inspect.unwrap(value))


def shown_value(value: Any) -> str:
    """A constant or an alias of types, as Markdown."""
    text = repr(value).replace("typing.", "").replace("collections.abc.", "")
    return f"`{text}`."


def linker(package: str) -> Any:
    """Function that finds the target of a name in a docstring of a package."""

    def link(code: str) -> str | None:
        code = code.removesuffix("()")
        for name in (code, f"tensorjax.{code}", f"{full(package)}.{code}"):
            if name in map(full, PACKAGES):
                return f"module-{name}"
            value = objects().get(name)
            if value is not None and not isinstance(value, ModuleType):
                return home(name)
        return None

    return link


class Qualified(ast.NodeTransformer):
    """Replaces names of public types in annotations by the full names of their entries."""

    def __init__(self, function: Any) -> None:
        self.known = function.__globals__
        self.package = (function.__module__ or "").removeprefix("tensorjax.").partition(".")[0]

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Leaves names of parameters as they are."""
        if node.annotation is not None:
            node.annotation = self.visit(node.annotation)
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        """Leaves defaults as they are."""
        for arg in [*node.posonlyargs, *node.args, *node.kwonlyargs, node.vararg, node.kwarg]:
            if arg is not None:
                self.visit_arg(arg)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Looks a name up in the module; names imported for checkers only, among all entries."""
        found = homes().get(id(self.known.get(node.id)))
        if found is None and node.id not in self.known:
            ends = [name for name in homes().values() if name.endswith(f".{node.id}")]
            mine = [name for name in ends if name.startswith(f"tensorjax.{self.package}.")]
            found = (mine or ends or [None])[0]
        return ast.parse(found, mode="eval").body if found else node


def arguments(function: Any) -> str:
    """Parameters and result of a function as its source writes them."""
    function = inspect.unwrap(function)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        tree = None
    if not isinstance(tree, ast.FunctionDef):
        return plain(function)
    Qualified(function).visit(tree.args)
    if tree.returns:
        tree.returns = Qualified(function).visit(tree.returns)
    kept = tree.args.posonlyargs or tree.args.args
    if kept and kept[0].arg in ("self", "cls"):
        del kept[0]
    result = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
    return f"({ast.unparse(tree.args)}){result}"


def plain(value: Any) -> str:
    """Names and defaults of the parameters of a class or function."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "()"
    shown = []
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls") or parameter.name.startswith("_"):
            continue
        default = parameter.default
        simple = isinstance(default, int | float | str | bool | None | tuple)
        if default is not parameter.empty and not simple:
            parameter = parameter.replace(default=Ellipsis)
        shown.append(parameter.replace(annotation=parameter.empty))
    text = str(signature.replace(parameters=shown, return_annotation=signature.empty))
    return text.replace("Ellipsis", "...")


def constructor(kind: type) -> str:
    """Parameters of a class, as its own `__init__` writes them where it has one."""
    init = inspect.getattr_static(kind, "__init__")
    written = inspect.isfunction(init) and not hasattr(kind, "__dataclass_fields__")
    return arguments(init).partition(" -> ")[0] if written else plain(kind)


def members(kind: type) -> Iterator[tuple[str, str, Any]]:
    """Yields directive, name and function of the public methods and properties of a class."""
    for name, value in sorted(inspect.getmembers_static(kind)):
        owner = next((c for c in kind.__mro__ if name in vars(c)), object)
        if name.startswith("_") or not owner.__module__.startswith("tensorjax"):
            continue
        if isinstance(value, property | functools.cached_property):
            function = value.fget if isinstance(value, property) else value.func
            yield "py:property", name, function
        elif isinstance(value, classmethod | staticmethod):
            yield "py:method", name, value.__func__
        elif inspect.isfunction(value):
            yield "py:method", name, value


def elsewhere(title: str) -> str:
    """Line that names the entries whose examples show an object that has none of its own."""
    value = objects()[title]
    package, _, name = title.rpartition(".")
    if not is_documented(value) or ">>>" in (value.__doc__ or ""):
        return ""
    word = re.compile(rf"\b{name}\b")
    shown = []
    for other, candidate in objects().items():
        near = other != title and other.startswith(f"{package}.") and is_documented(candidate)
        text = (candidate.__doc__ or "") if near else ""
        if near and inspect.isfunction(inspect.unwrap(candidate)):
            text += arguments(candidate)
        if ">>>" in text and word.search(text) and home(other) == other:
            shown.append(f"{{py:obj}}`{other.removeprefix('tensorjax.')} <{other}>`")
    return f"**Examples** with it: {', '.join(shown[:4])}." if shown else ""


def entry(package: str, name: str) -> str:
    """Markdown of the entry of a public name; empty where another package has it."""
    value, title = objects()[f"{full(package)}.{name}"], f"{full(package)}.{name}"
    if isinstance(value, ModuleType) or home(title) != title:
        return ""
    link = linker(package)
    text = "\n\n".join(filter(None, [markdown(value.__doc__ or "", link), elsewhere(title)]))
    if inspect.isclass(value):
        methods = []
        for kind, method, function in members(value):
            if function.__doc__:
                shown = arguments(function) if kind == "py:method" else ""
                body = markdown(function.__doc__, link)
                methods.append(f"::::{{{kind}}} {method}{shown}\n\n{body}\n::::")
        text = "\n\n".join([text, *methods])
        return f":::::{{py:class}} {title}{constructor(value)}\n\n{text}\n:::::"
    if not is_documented(value):
        return f":::::{{py:data}} {title}\n\n{shown_value(value)}\n:::::"
    return f":::::{{py:function}} {title}{arguments(value)}\n\n{text}\n:::::"


def row(package: str, name: str) -> str:
    """Row of the table: the name with a link, and the first sentence of its docstring."""
    title = f"{full(package)}.{name}"
    value = objects()[title]
    shown = f"{package}.{name}".lstrip(".")
    if isinstance(value, ModuleType):
        first = f"{{ref}}`{shown} <module-{value.__name__}>`"
    else:
        first = f"{{py:obj}}`{shown} <{home(title)}>`"
    documented = is_documented(value) or isinstance(value, ModuleType)
    sentence = first_sentence(value.__doc__) if documented else shown_value(value)
    text = markdown(sentence, linker(package)).replace("|", "\\|")
    return f"| {first} | {text} |"


def files(value: Any) -> Iterator[str]:
    """Yields the files that an entry depends on: its source, and these modules."""
    yield from (__file__, docstrings.__file__)
    try:
        yield inspect.getsourcefile(inspect.unwrap(value)) or __file__
    except TypeError:  # a constant
        return


class Public(SphinxDirective):
    """Table and entries of public names of a package."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Parses the Markdown that the names give."""
        package = self.arguments[0].removeprefix("tensorjax").lstrip(".")
        names = " ".join(self.content).split()
        for name in names:
            for file in files(objects()[f"{full(package)}.{name}"]):
                self.env.note_dependency(file)
        table = [
            "| name | what it is or does |",
            "|---|---|",
            *(row(package, name) for name in names),
        ]
        entries = [text for name in names if (text := entry(package, name))]
        text = "\n".join(table) + "\n\n" + "\n\n".join(entries)
        holder = nodes.container()
        source = f"<public {package}>"
        self.state.nested_parse(StringList(text.splitlines(), source), 0, holder)
        return holder.children


class Package(SphinxDirective):
    """Docstring of a package, but for its first sentence."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parses the docstring."""
        module = importlib.import_module(self.arguments[0])
        for file in files(module):
            self.env.note_dependency(file)
        package = self.arguments[0].removeprefix("tensorjax").lstrip(".")
        rest = inspect.cleandoc(module.__doc__ or "").partition("\n\n")[2]
        lines = markdown(rest, linker(package)).splitlines()
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, f"<package {package}>"), 0, holder)
        return holder.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directives."""
    app.add_directive("public", Public)
    app.add_directive("package", Package)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
