"""The command line of the experiments, on a tiny experiment planted in a copy of the package."""

import importlib.util
import json
import math
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("tyro", reason="the experiments have an extra of their own")

from experiments import Experiment, _registry, _results
from experiments.__main__ import Progress, hurried, main

ROOT = Path(__file__).resolve().parents[1]

DESCRIPTION = """
from experiments import Experiment

EXPERIMENTS = (
    Experiment(name="tiny", module="experiments.tiny.main", paper="Nobody, arXiv 0000.00000",
               summary="squares [of] numbers", claim="squares grow", basis="abstract", quick="1 s"),
    Experiment(name="tiny/needy", module="experiments.tiny.needy", paper="Nobody",
               summary="needs a package that is not there", quick="1 s", extra="bench"),
)
"""

MAIN = '''
import math
import sys
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Config:
    count: int = 5
    """Number of squares."""
    scale: float = 1.0
    """Factor, in metres."""
    fail: bool = False
    """Raise at the end."""

    def __post_init__(self):
        if self.count < 1:
            raise ValueError(f"count: expected at least 1, got {self.count}")

    @classmethod
    def quick(cls):
        return cls(count=2)


def run(config, run):
    steps = run.progress(range(config.count), "squares")
    squares = {n: np.float32(n * n * config.scale) for n in steps}
    rows = [{"n": n, "square": s, "by (whom)": "a|<b>"} for n, s in squares.items()]
    paper = [{"n": 1, "square": 0.75}, {"n": 9, "square": 81}]
    run.table("squares", rows, caption="Squares, in m²", key=["n"], paper=paper)
    figure = Figure()
    figure.subplots().plot([1, 2])
    run.figure("line", figure, caption="A <line>")
    run.metric("undefined", math.nan)
    run.metric("largest", np.float64(7.5))
    run.compare("they do", np.bool_(True))
    if config.fail:
        raise RuntimeError("asked to")
'''


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder that holds a copy of the framework and the tiny experiments, nothing else."""
    package = tmp_path / "experiments"
    package.mkdir()
    for module in (ROOT / "experiments").glob("*.py"):
        shutil.copy(module, package)
    (package / "tiny").mkdir()
    (package / "tiny" / "__init__.py").write_text(DESCRIPTION)
    (package / "tiny" / "main.py").write_text(MAIN)
    (package / "tiny" / "needy.py").write_text("import no_such_package\n")
    return tmp_path


@pytest.fixture
def here(planted: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same, seen from inside this process, which is fast."""
    import experiments

    monkeypatch.setattr(experiments, "__path__", [str(planted / "experiments")])
    monkeypatch.chdir(planted)
    yield planted
    for name in list(sys.modules):
        if name.startswith(("experiments.tiny", "experiments.rival")):
            del sys.modules[name]


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "experiments", *arguments]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        line, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def only_run(folder: Path) -> dict:
    (line,) = (folder / "results" / "tiny" / "runs.jsonl").read_text().splitlines()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_a_run_records_everything(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny", "--quick", "--scale", "2"]) == 0
    run = only_run(here)
    assert run["config"] == {"count": 2, "scale": 2.0, "fail": False}
    assert run["quick"] is True
    assert run["metrics"] == {"undefined": None, "largest": 7.5}
    assert run["versions"].keys() >= {"python", "jax", "jaxlib", "numpy"}
    assert (run["device"]["platform"], run["device"]["count"]) == ("cpu", 8)
    assert run["commit"] is None or run["commit"].keys() == {"hash", "dirty"}
    folder = here / "results" / "tiny" / run["run"]
    assert sorted(path.name for path in folder.iterdir()) == ["line.png", "squares.csv"]
    assert (folder / "line.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "squares.csv").read_text().splitlines() == [
        "n,square,square (paper),by (whom)",
        "0,0.0,,a|<b>",
        "1,2.0,0.75,a|<b>",
        "9,,81,",
    ]
    assert "square (paper)" in capsys.readouterr().out


def test_every_run_adds_a_line(here: Path) -> None:
    assert [main(["run", "tiny"]), main(["run", "tiny", "--quick"])] == [0, 0]
    runs, faults = _results.read_runs(here / "results", "tiny")
    assert [run["config"]["count"] for run in runs] == [5, 2]
    assert not faults


def test_a_failed_run_leaves_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny", "--fail"]) == 1
    assert "asked to" in capsys.readouterr().err
    assert not list((here / "results").rglob("*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "tiyn"], "did you mean 'tiny'? known: tiny, tiny/needy"),
        (["run", "--quick", "nothing-like-it"], "known: tiny, tiny/needy"),
        (["run", "tiny", "--count", "0"], "count: expected at least 1, got 0"),
    ],
)
def test_bad_input_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not (here / "results").exists()


@pytest.mark.parametrize(
    "arguments", [["run", "tiny", "--cuont", "3"], ["run", "tiny", "--count", "x"], ["run"], []]
)
def test_bad_options_are_usage_errors(here: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


def test_help_shows_units_and_defaults(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "tiny", "--quick", "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert "Number of squares. (default: 2)" in shown
    assert "Factor, in metres. (default: 1.0)" in shown


def test_a_missing_package_is_explained(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny/needy"]) == 1
    assert "tiny/needy needs the package 'no_such_package'" in capsys.readouterr().err


def test_report_gathers_the_latest_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny"]) == 0
    assert main(["run", "tiny", "--quick"]) == 0
    assert main(["report"]) == 0
    assert str(here / "results" / "report.html") in capsys.readouterr().out
    markdown = (here / "results" / "report.md").read_text()
    page = (here / "results" / "report.html").read_text()
    assert "| 1 | 1 | 0.75 | a\\|\\<b> |" in markdown
    assert "| 4 | 16 |" not in markdown  # a row of the older run
    assert (here / "results" / markdown.split("](")[1].split(")")[0]).exists()
    assert '<td class="figure paper">0.75</td><td>a|&lt;b&gt;</td>' in page
    assert 'src="data:image/png;base64,' in page
    assert re.search(r'<th class="figure paper"><button[^>]*>square \(paper\)</button></th>', page)
    assert page.index("<figure>") < page.index("<details>")
    assert "largest" in page
    for said in ("squares grow", "they do", "abstract: ", "holds (quick run)"):
        assert said in page
        assert said in markdown
    assert "python -m experiments run tiny --quick" in page
    for external in ("http:", "https:", "<link", "<script src", "@import"):
        assert external not in page


def test_report_without_results_says_how(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--results", "nowhere"]) == 1
    assert "run all --quick" in capsys.readouterr().err


def test_a_damaged_line_is_left_out_and_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "tiny", "--quick"]) == 0
    with (here / "results" / "tiny" / "runs.jsonl").open("a") as file:
        file.write('{"experiment": "ti')
    assert main(["report"]) == 0
    assert "line 2: not JSON" in capsys.readouterr().err.replace("\n", " ")


def test_list_imports_nothing_heavy(planted: Path) -> None:
    code = (
        "import sys; from experiments.__main__ import main; main(['list']);"
        "print(sorted({'jax', 'numpy', 'matplotlib', 'experiments.tiny.main'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=planted, capture_output=True, text=True, check=True
    )
    assert "squares [of] numbers" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


# Before "tiny" in the alphabet, but after it where others run together.
RIVAL = """
from experiments import Experiment

EXPERIMENTS = (
    Experiment(name="rival", module="experiments.tiny.main", paper="Nobody",
               summary="compares times", quick="1 s", alone=True),
)
"""


def test_progress_says_what_has_ended_and_how_long_the_rest_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 60.0, 200.0])
    monkeypatch.setattr("experiments.__main__.time.perf_counter", lambda: next(clock))
    both = [
        Experiment(name=name, module="", paper="", summary="", quick=quick)
        for name, quick in (("one", "100 s"), ("two", "200 s"))
    ]
    progress = Progress(both, jobs=2, quick=True)
    progress.note(both[0])  # in 60 s instead of 100
    progress.note(both[1])
    assert capsys.readouterr().err.splitlines() == [
        "2 experiments, 2 at a time, about 2 min",
        "one has ended, 1 left, about 2 min",
        "two has ended, 0 left",
    ]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(("--quick",), marks=pytest.mark.slow),
        ("--quick", "--jobs", "2"),
        pytest.param(("--jobs", "2"), marks=pytest.mark.slow),
    ],
)
def test_run_all_goes_on_after_a_failure(planted: Path, more: tuple[str, ...]) -> None:
    (planted / "experiments" / "rival").mkdir()
    (planted / "experiments" / "rival" / "__init__.py").write_text(RIVAL)
    done = command(planted, "run", "all", *more)
    assert done.returncode == 1
    assert "failed: tiny/needy" in done.stderr
    tiny, rival = (done.stdout.index(text) for text in ("tiny: squares", "rival: compares"))
    assert (tiny < rival) == ("--quick" not in more)
    assert done.stdout.count("written to") == 2
    assert only_run(planted)["quick"] is ("--quick" in more)


def test_the_longest_experiments_begin_first_and_are_shown_by_name(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "experiments" / "rival").mkdir()
    (here / "experiments" / "rival" / "__init__.py").write_text(RIVAL)
    description = DESCRIPTION.replace('quick="1 s", extra', 'quick="10 s", extra')
    (here / "experiments" / "tiny" / "__init__.py").write_text(
        description.replace('abstract", quick="1 s"', 'abstract", quick="9 s"')
    )
    begun: list[str] = []

    def run_quietly(name: str, options: list[str]) -> tuple[int, str]:
        begun.append(name)
        return 0, f"said by {name};"

    monkeypatch.setattr("experiments.__main__.run_quietly", run_quietly)
    one_by_one = ThreadPoolExecutor(1)
    monkeypatch.setattr("experiments.__main__.ThreadPoolExecutor", lambda jobs: one_by_one)
    assert main(["run", "all", "--quick", "--jobs", "2"]) == 0
    assert begun == ["tiny/needy", "tiny", "rival"]  # 10, 9 and 1 s
    shown = re.findall("said by (.*?);", capsys.readouterr().out)
    assert shown == ["rival", "tiny", "tiny/needy"]


def test_quick_runs_that_compile_or_compare_no_times_are_hurried(here: Path) -> None:
    assert (found := hurried(["run", "tiny", "--results", "x", "--quick"]))
    assert not found.compiles
    assert not hurried(["run", "tiny"])
    assert not hurried(["run", "nothing-like-it", "--quick"])
    assert not hurried(["run", "all", "--quick"])  # each run hurries in a process of its own
    rival = here / "experiments" / "rival" / "__init__.py"
    rival.parent.mkdir()
    rival.write_text(RIVAL)
    assert not hurried(["run", "rival", "--quick"])
    rival.write_text(RIVAL.replace("alone=True", "alone=True, compiles=True"))
    del sys.modules["experiments.rival"]
    assert (found := hurried(["run", "rival", "--quick"]))
    assert found.compiles
    assert not hurried(["run", "rival"])


@pytest.mark.parametrize(
    ("given", "unoptimised"), [("", True), ("--xla_backend_optimization_level=2", False)]
)
def test_a_hurried_process_compiles_hastily_unless_told_otherwise(
    given: str, unoptimised: bool
) -> None:
    code = f"""if True:
        import os, sys
        from experiments._process_settings import compiler_options, hasten
        assert "jax" not in sys.modules
        hasten(unoptimised={unoptimised})
        import jax, jax.numpy as jnp
        assert compiler_options(False, unoptimised={unoptimised}) is None
        options = compiler_options(True, unoptimised={unoptimised})
        jax.jit(jnp.sin)(1.0).block_until_ready()
        jax.jit(jnp.cos, compiler_options=options)(1.0).block_until_ready()
        print(*(f"--{{name}}={{str(value).lower()}}" for name, value in options.items()))
        print(os.environ["XLA_FLAGS"])
    """
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, text=True, capture_output=True,
        cwd=Path(__file__).parents[1], env={**os.environ, "XLA_FLAGS": given},
    )  # fmt: skip
    options, flags = (line.split() for line in done.stdout.splitlines())
    assert options[0] == f"--xla_backend_optimization_level={0 if unoptimised else 1}"
    assert flags == [*options, *given.split()]  # of two settings of a flag, the last one counts


def test_at_least_one_runs_at_a_time(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "all", "--jobs", "0"]) == 2
    assert "--jobs: expected at least 1, got 0" in capsys.readouterr().err


def test_experiments_are_named_after_their_folder(here: Path) -> None:
    declaration = here / "experiments" / "tiny" / "__init__.py"
    declaration.write_text(DESCRIPTION.replace('"tiny/needy"', '"elsewhere"'))
    with pytest.raises(ValueError, match="got 'elsewhere'"):
        _registry.discover()


def test_every_experiment_of_the_toolkit_has_a_source() -> None:
    for experiment in _registry.discover().values():
        assert experiment.paper
        assert experiment.summary
        assert experiment.quick_seconds > 0
        assert importlib.util.find_spec(experiment.module)


def test_every_experiment_has_a_title_of_its_own() -> None:
    """The report's headings, which its cards link to."""
    found = [experiment.title for experiment in _registry.discover().values()]
    assert all(found)
    assert len(set(found)) == len(found)


def test_published_rows_are_joined_on_all_keys() -> None:
    ours = [{"d": 2, "r": 1, "e": 0.1}, {"d": 2, "r": 2, "e": 0.2}]
    joined = _results.beside(ours, ["d", "r"], [{"d": 2, "r": 2, "e": 0.3, "s": 9}], "peer")
    assert joined == [
        {"d": 2, "r": 1, "e": 0.1, "e (peer)": None, "s (peer)": None},
        {"d": 2, "r": 2, "e": 0.2, "e (peer)": 0.3, "s (peer)": 9},
    ]


def test_plain_values_are_valid_json() -> None:
    value = {
        "nan": math.nan,
        "inf": [np.float32("inf"), 1.5],
        "jax": jnp.ones((2, 1)),
        "path": Path("a"),
        "flag": np.bool_(True),
        1: Experiment(name="a", module="b", paper="c", summary="d", quick="e").packages,
    }
    expected = {
        "nan": None, "inf": [None, 1.5], "jax": [[1.0], [1.0]], "path": "a", "flag": True, "1": []
    }  # fmt: skip
    assert _results.plain(value) == expected
    json.dumps(_results.plain(value), allow_nan=False)


def test_names_of_files_are_checked(tmp_path: Path) -> None:
    from rich.console import Console

    run = _results.Run(tmp_path, Console(quiet=True))
    run.table("a", [{"x": 1}])
    with pytest.raises(ValueError, match="already recorded"):
        run.table("a", [{"x": 1}])
    with pytest.raises(ValueError, match="letters, digits"):
        run.table("../b", [{"x": 1}])
    with pytest.raises(ValueError, match="at least one row"):
        run.table("c", [])


# Prints how many fresh pages twenty arrays of 8 MB take, one after another, before and after.
FRESH_PAGES = """
import resource
import numpy as np
from experiments._process_settings import keep_memory

def faults():
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(1_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start

before = faults()
keep_memory()
np.ones(1_000_000)
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told")
def test_memory_that_is_kept_needs_no_fresh_pages() -> None:
    # NumPy asks for huge pages, of which it would not need many; the allocator's own are small.
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PAGES], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"},
    )  # fmt: skip
    before, after = map(int, done.stdout.split())
    assert before > 20 * 8_000_000 // 65536  # 64 KiB are the largest of small pages
    assert after < before / 10


Look = Callable[[Path], list[tuple[str, str]]]


@pytest.fixture(scope="module")
def look() -> Look:
    """The look at pages in headless Chromium, where there is one."""
    names = runpy.run_path(str(ROOT / "docs" / "look.py"))
    if names["browser"]() is None:
        pytest.skip("no Chromium is installed")
    return names["look"]


@pytest.mark.slow
def test_the_report_is_fit_for_a_desktop_and_a_phone(here: Path, look: Look) -> None:
    """No page too wide, no file missing, nothing on the console."""
    assert main(["run", "tiny", "--quick"]) == 0
    assert main(["report"]) == 0
    assert look(here / "results") == []


FAULTS = """<!doctype html><html><body><img src="no.png"><div style="width: 800px">x</div>
<script src="no.js"></script><script>console.error("some words")</script>
<script>nothing.at.all()</script><script>Promise.reject(new Error("late"))</script></body></html>"""


@pytest.mark.slow
def test_faults_of_pages_are_seen(tmp_path: Path, look: Look) -> None:
    """As the gate looks at the site: all that may be wrong with a page at a phone's width."""
    (tmp_path / "page.html").write_text(FAULTS, "utf-8")
    found = " ".join(fault for _, fault in look(tmp_path))
    for fault in ("window of 390", "no picture in no.png", "no file no.js", "some words",
                  "nothing is not defined", "Error: late"):  # fmt: skip
        assert fault in found, fault
    assert "window of 1280" not in found


@pytest.mark.parametrize(("ours", "holds"), [(1.0, False), (1.9, True), (None, None)])
def test_outcomes_are_judged_by_their_rows(ours: float | None, holds: bool | None) -> None:
    """As the claims say: better, worse, and not measured."""
    pytest.importorskip("flax", reason="the models have an extra of their own")
    from experiments.comera import compress
    from experiments.offload import main as offload
    from experiments.tp2d import main as tp2d
    from experiments.ttrp import main as ttrp
    from experiments.ttrp.methods import GAUSSIAN, TTRP

    row = {"devices": 4, "layout": "summa", "speed / 1D": ours}
    assert tp2d.outcome([row, row | {"devices": 16, "speed / 1D": 9.0}])[1] is holds
    row = {"way": offload.OURS, "speed": ours, "over DeepSpeed": 1.0, "device": "here"}
    assert offload.outcome([row, row | {"way": "another", "speed": 9.0}])[1] is holds
    scores = [] if ours is None else [{"method": "default", "accuracy": ours, "fewer": 10.0}]
    scores += [{"method": "one rank", "accuracy": 1.5, "fewer": 10.0}]
    assert compress.outcome(scores)[1] is holds
    common = {"N": 100, "M": 8}
    maps = [common | {"method": GAUSSIAN.name, "variance": 1.0, "storage": 800}]
    if ours is not None:
        maps.append(common | {"method": TTRP.name, "variance": 3 - ours, "storage": 20})
    found = ttrp.outcome(maps)[1]
    assert found is (None if ours is None else 3 - ours <= 2)
