"""Imports point down only, and `import tensorjax` stays light."""

import ast
import re
import runpy
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From the bottom up. A component may import those of lower layers, and itself. Under them all
# lie the private helpers, tensorjax/_*.py, which import only each other; _check not even that.
LAYERS = (
    ("contract", "linalg"),
    ("_cores",),
    ("_formats",),
    ("tt", "tucker", "mera"),
    ("convert", "sketch", "interop"),
    ("nn", "optim", "pde", "parallel", "offload"),
    ("models", "plot"),
)
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
HEAVY = {"chex", "flax", "matplotlib", "optax", "sklearn", "tensornetwork", "torch"}


def may_import(component: str, target: str) -> bool:
    """Whether a module of one component may import another component."""
    if target.startswith("_") and target not in HEIGHT:
        return component != "_check"
    return target in HEIGHT and HEIGHT[target] < HEIGHT.get(component, 0)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, package: str) -> Iterator[str]:
    """Yields the full name of everything a source imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def breaches(source: str, component: str, package: str) -> list[str]:
    """Returns what a module of `component`, in `package`, imports from beside or above it."""
    found = []
    for name in imported(source, package):
        top, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        inside = top == "tensorjax" and target != component
        if top == "experiments" or (inside and not may_import(component, target)):
            found.append(name)
    return found


def modules() -> list[Path]:
    return sorted(p for p in (ROOT / "tensorjax").rglob("*.py") if p.parent.name != "__pycache__")


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_imports_point_down(path: Path) -> None:
    name = module_name(path)
    component = name.partition(".")[2].partition(".")[0]
    if not component:  # tensorjax/__init__.py sees everything but the experiments
        names = list(imported(path.read_text(), name))
        assert not [name for name in names if name.partition(".")[0] == "experiments"]
        return
    assert component in HEIGHT or component.startswith("_"), f"{name} has no place in LAYERS"
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    assert breaches(path.read_text(), component, package) == []


def rooms(package: Path) -> dict[str, set[str]]:
    """Parts of a package, its modules and folders, and which of the others each of them imports."""
    above = module_name(package / "__init__.py")
    found: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        name = module_name(path)
        room = name.removeprefix(above).strip(".").partition(".")[0]
        if not room:
            continue  # the package's own __init__ sees all of them
        inside = name if path.name == "__init__.py" else name.rpartition(".")[0]
        mine = found.setdefault(room, set())
        for target in imported(path.read_text(), inside):
            other = target.removeprefix(above + ".").partition(".")[0]
            if target.startswith(above + ".") and other != room:
                mine.add(other)
    return {room: targets & found.keys() for room, targets in found.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Nodes of a graph that cannot be put in an order; empty if all can."""
    left = dict(graph)
    while free := [node for node, targets in left.items() if not targets & left.keys()]:
        for node in free:
            del left[node]
    return sorted(left)


def packages() -> list[Path]:
    return sorted(p.parent for p in (ROOT / "tensorjax").rglob("__init__.py"))


@pytest.mark.parametrize("package", packages()[1:], ids=lambda p: module_name(p / "__init__.py"))
def test_parts_of_a_package_import_in_one_direction(package: Path) -> None:
    """No folder or module of a package imports another one that imports it, however indirectly."""
    assert circle(rooms(package)) == []


def test_experiments_import_in_one_direction() -> None:
    """No module of the experiments imports another one that imports it, however indirectly."""
    paths = sorted((ROOT / "experiments").rglob("*.py"))
    names = {module_name(path): path for path in paths}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found = imported(path.read_text(), package)
        targets = {t if t in names else t.rpartition(".")[0] for t in found}
        graph[name] = (targets & names.keys()) - {name}
    assert circle(graph) == []


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"c"}, "e": set()}
    assert circle(graph) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("package", packages(), ids=lambda p: module_name(p / "__init__.py"))
def test_folders_are_small(package: Path) -> None:
    """About a dozen files a folder: few enough to read all of their names."""
    files = [p for p in package.iterdir() if p.suffix == ".py" and p.name != "__init__.py"]
    assert len(files) <= 14, [p.name for p in files]


@pytest.mark.parametrize(
    ("component", "package", "source"),
    [
        ("linalg", "tensorjax", "from tensorjax import contract"),
        ("contract", "tensorjax", "from tensorjax.linalg import qr"),
        ("contract", "tensorjax", "import tensorjax.tt.algebra"),
        ("_check", "tensorjax", "from tensorjax._einsum import parse"),
        ("_einsum", "tensorjax", "from tensorjax import contract"),
        ("_einsum", "tensorjax", "from tensorjax._formats.trains import TT"),
        ("linalg", "tensorjax.linalg", "from tensorjax._cores.unfoldings import tall"),
        ("tt", "tensorjax.tt", "from tensorjax.tucker import Tucker"),
        ("tt", "tensorjax.tt", "from ..convert import tt_to_mera"),
        ("tucker", "tensorjax", "from . import tt"),
        ("tt", "tensorjax.tt", "def f():\n    import tensorjax.nn"),
        ("pde", "tensorjax.pde", "if TYPE_CHECKING:\n    from tensorjax import optim"),
        ("nn", "tensorjax.nn", "from tensorjax.models.gpt2 import GPT2"),
        ("models", "tensorjax.models", "import experiments.ttrp"),
        ("tt", "tensorjax.tt", "import tensorjax"),
        ("tt", "tensorjax.tt", "from tensorjax import not_in_the_plan"),
    ],
)
def test_a_planted_breach_is_found(component: str, package: str, source: str) -> None:
    assert len(breaches(source, component, package)) == 1


@pytest.mark.parametrize(
    ("component", "package", "source"),
    [
        ("linalg", "tensorjax", "from tensorjax import _check"),
        ("_paths", "tensorjax", "from tensorjax import _check, _einsum"),
        (
            "tt",
            "tensorjax.tt",
            "from tensorjax import contract, linalg\nfrom tensorjax.tt import round",
        ),
        ("tt", "tensorjax.tt", "from . import algebra\nfrom ._types import TT"),
        ("convert", "tensorjax", "from tensorjax import mera, tt, tucker"),
        ("models", "tensorjax.models", "import jax\nfrom tensorjax import interop, nn"),
    ],
)
def test_an_import_from_below_passes(component: str, package: str, source: str) -> None:
    assert breaches(source, component, package) == []


def test_importing_the_core_loads_nothing_heavy() -> None:
    """No optional package is loaded by `import tensorjax`, nor by its formats and sketches."""
    light = {name for layer in LAYERS[:4] for name in layer} - {"interop"}
    names = {".".join(module_name(path).split(".")[:2]) for path in modules()}
    names = sorted(name for name in names if name.partition(".")[2] in {"", *light})
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "jax" in loaded
    assert loaded & HEAVY == set()


def test_the_architecture_page_is_up_to_date() -> None:
    """Its picture and its tables are those of the code: `python docs/layers.py` writes them."""
    layers = runpy.run_path(str(ROOT / "docs" / "layers.py"))
    page = layers["PAGE"].read_text("utf-8")
    assert layers["written"](page) == page
    assert_call_paths_exist(page)
    # Paths that the hand-written parts name exist.
    named = set(re.findall(r"[\w/]+/\w+\.py", page.partition("## What is where")[0]))
    roots = (ROOT, ROOT / "tensorjax", *(ROOT / "tensorjax").rglob("*/"))
    assert not [name for name in named if not any((root / name).exists() for root in roots)]


def assert_call_paths_exist(page: str) -> None:
    """All modules and functions that the call paths show are there."""
    lines = re.findall(r"^(?:checks|choice|work|result| ) +([\w/]+): (.+)$", page, flags=re.M)
    assert len(lines) > 50
    for module, names in lines:
        path = ROOT / "tensorjax" / f"{module}.py"
        path = path if path.exists() else ROOT / "tensorjax" / module / "__init__.py"
        tree = ast.parse(path.read_text("utf-8"))
        held = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert set(names.split(", ")) - {"…"} <= held, module


# Packages that contract arrays themselves: cores, whole networks, and matrices. In `models` a few
# einsums are of attention and of features, in `offload` of sums of squares: not of cores.
ARITHMETIC = ("_cores", "contract", "linalg", "models", "offload")
UNFOLDINGS = {"tall", "wide", "reshape"}


def called(node: ast.AST) -> str:
    """The name of the function or method that a node calls, or nothing."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


def is_product(node: ast.AST) -> bool:
    at = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    return at or called(node) == "matmul"


def is_unfolding(node: ast.AST, names: Collection[str] = ()) -> bool:
    """Whether an expression is a core merged to a matrix, perhaps transposed or conjugated.

    Or one of the variables `names`, which hold such matrices.
    """
    while True:
        if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
            node = node.value
        elif isinstance(node, ast.Call) and called(node) in ("conj", "adjoint"):
            node = node.args[0] if node.args else node.func
        elif isinstance(node, ast.Attribute) and node.attr == "conj":
            node = node.value
        else:
            return called(node) in UNFOLDINGS or getattr(node, "id", None) in names


def contractions(source: str, *, follow: bool = False) -> list[int]:
    """Lines that contract arrays of more than two axes by hand.

    By `tensordot` or `einsum` of NumPy or JAX, by a matrix product whose factor is an unfolding, or
    whose result is folded again: in one expression or, to `follow`, by way of variables too.
    """
    tree = ast.parse(source)
    found = set(written_out(tree, (), ()))
    for function in ast.walk(tree) if follow else ():
        if isinstance(function, ast.FunctionDef):
            assigned = [n for n in ast.walk(function) if isinstance(n, ast.Assign)]
            named = [
                (t.id, n.value) for n in assigned for t in n.targets if isinstance(t, ast.Name)
            ]
            unfoldings = {name for name, value in named if is_unfolding(value)}
            products = {name for name, value in named if is_product(value)}
            found.update(written_out(function, unfoldings, products))
    return sorted(found)


def written_out(
    tree: ast.AST, unfoldings: Collection[str], products: Collection[str]
) -> Iterator[int]:
    """Yields the lines of `contractions`; the variables hold unfoldings, and matrix products."""
    for node in ast.walk(tree):
        factors = getattr(node, "args", [getattr(node, "left", None), getattr(node, "right", None)])
        owner = getattr(getattr(getattr(node, "func", None), "value", None), "id", "")
        if called(node) in ("tensordot", "einsum") and owner in ("np", "jnp", "xp"):
            yield node.lineno
        if is_product(node) and any(is_unfolding(f, unfoldings) for f in factors if f is not None):
            yield node.lineno
        if called(node) == "reshape" and isinstance(node.func, ast.Attribute):
            inner = node.func.value
            while called(inner) in ("reshape", "transpose", "swapaxes"):
                inner = inner.func.value
            if is_product(inner) or getattr(inner, "id", None) in products:
                yield node.lineno


# Modules that multiply matrices which are reshaped arrays, and no contraction of a core: bases in
# a decomposition of an unfolding, vectors of a local problem, rows of samples or of a batch.
MATRICES = {
    "convert._disentangler_iterations", "convert._disentangler_search", "parallel._collectives",
    "pde._generators.tangent_normal_factors", "pde._stepping.low_moments", "sketch._apply",
    "sketch._train_input", "tt._completion.als", "tt._eigen.dmrg_sweeps",
    "tt._eigen.local_problems", "tt._eigen.lowest_pairs_search", "tt._linear.amen",
    "tt._linear.amen_local_systems", "tt._tt_svd.small_arrays", "tt._tt_svd.tt_svd_on_host",
    "tt.quantics.grids", "tucker._core_and_factors", "tucker._decompositions.hosvd",
}  # fmt: skip


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_cores_are_contracted_in_one_room(path: Path) -> None:
    if path.relative_to(ROOT / "tensorjax").parts[0] not in ARITHMETIC:
        follow = module_name(path).removeprefix("tensorjax.") not in MATRICES
        assert contractions(path.read_text(), follow=follow) == []


def test_modules_that_multiply_matrices_do_so() -> None:
    """An exception that no module needs any more goes."""
    sources = {module_name(p).removeprefix("tensorjax."): p.read_text() for p in modules()}
    assert not [name for name in MATRICES if not contractions(sources[name], follow=True)]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("np.tensordot(a, b, 1)", True),
        ("xp.einsum('ij,jk->ik', a, b)", True),
        ("tall(core).conj().T @ m", True),
        ("linalg.matmul(m, core.reshape(3, -1))", True),
        ("(a @ b).reshape(r, n, s)", True),
        ("linalg.matmul(a, b).transpose(1, 0).reshape(r, n, s)", True),
        ("einsum('ij,jk->ik', a, b)", False),
        ("gamma @ diffusion @ gamma.T", False),
        ("absorb(matrix, core).reshape(3, -1)", False),
    ],
)
def test_contractions_by_hand_are_found(source: str, found: bool) -> None:
    assert bool(contractions(source)) is found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("m = core.reshape(-1, s)\n    return m @ x", True),
        ("m = core.reshape(r, -1)\n    return linalg.matmul(g, m.conj().T)", True),
        ("m = a @ b\n    return m.reshape(r, n, s)", True),
        ("m = absorb(g, core)\n    return m.reshape(r, -1)", False),
        ("m = a @ b\n    return m + core.reshape(r, -1)", False),
    ],
)
@pytest.mark.parametrize("module", ["pde._problems.reactions", "convert._tt_to_mera", "nn._specs"])
def test_contractions_by_way_of_variables_are_found(module: str, body: str, found: bool) -> None:
    """Planted in a module of each kind."""
    path = ROOT / "tensorjax" / f"{module.replace('.', '/')}.py"
    planted = f"{path.read_text()}\n\ndef planted(a, b, core, g, n, r, s, x):\n    {body}\n"
    assert bool(contractions(planted, follow=True)) is found
