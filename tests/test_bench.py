"""The benchmark: its clocks count, its cases are what they claim, its peers may be missing."""

import dataclasses
import importlib
import json
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.__main__ import main
from experiments.bench import (
    _cases,
    _drawn,
    _library,
    _peers,
    _plain,
    _shapes,
    _timing,
    _verdicts,
    core,
    layers,
    solvers,
)
from experiments.bench._cases import Case, Goal
from experiments.bench._solving import Problem
from experiments.bench._verdicts import Result
from tensorjax import tt

FLAG = "jax_enable_compilation_cache"
TINY = dataclasses.replace(
    _cases.SMALL,
    dense=((4,) * 5,),
    orders=(4,),
    mode=4,
    doubled=3,
    decaying=(8, 4),
    batch=(3, 3, 3, 2),
    features=(1024,),
)


def lane(call: Any, **options: Any) -> _timing.Lane:
    return _timing.Lane("tensorjax", "", call, **options)


def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every peer look as if it were not installed."""
    real = importlib.import_module
    hidden = {name.partition(".")[0] for peer in _peers.PEERS for name in peer.modules}

    def fake(name: str, *args: Any) -> Any:
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", fake)


def test_compilations_are_counted_and_warm_calls_have_none() -> None:
    function = jax.jit(lambda x: jnp.sin(x) + 1.25)
    x, y = jnp.arange(3.0), jnp.arange(4.0)
    with _timing.compilations() as compiled:
        function(x)
        function(x)
        assert len(compiled) == 1
        function(y)
        assert len(compiled) == 2
    jax.jit(lambda x: jnp.cos(x) + 1.25)(x)
    assert len(compiled) == 2  # nobody listens any more


def test_a_timing_holds_the_first_call_apart() -> None:
    function = jax.jit(lambda x: jnp.sin(x) + 1.5)
    x = jnp.arange(5.0)
    timing, result = _timing.first_call(lane(lambda: jax.block_until_ready(function(x))))
    _timing.interleave([timing], 2)
    assert timing.programs == 1
    assert 0 < timing.compiling < timing.first
    assert timing.median < timing.first
    assert len(timing.samples) >= 2
    assert result.shape == (5,)


def test_a_cold_lane_starts_afresh_every_time() -> None:
    function = jax.jit(lambda x: jnp.sin(x) + 1.75)
    x, calls = jnp.arange(6.0), []
    cold = lane(lambda: calls.append(function(x)), before=jax.clear_caches)
    timing, _ = _timing.first_call(cold)
    with _timing.compilations() as compiled:
        _timing.interleave([timing], 3)
    assert timing.programs == 1  # of one call
    assert len(compiled) == len(calls) - 1 == 4
    assert len(timing.samples) == 3


def test_lanes_take_turns() -> None:
    order: list[str] = []
    slow = [lane(lambda name=name: (order.append(name), time.sleep(0.03))) for name in "ab"]
    timings = [_timing.first_call(one)[0] for one in slow]
    _timing.interleave(timings, 2)
    assert "".join(order) == "abab" + "aabb" + "bbaa"  # first, warm; then with one untimed each
    assert all(0.03 <= t.median < 0.3 for t in timings)


def test_a_failure_is_kept_and_the_others_go_on() -> None:
    bad, result = _timing.first_call(lane(lambda: 1 / 0))
    good, _ = _timing.first_call(lane(lambda: None))
    _timing.interleave([bad, good], 1)
    assert bad.failure == "failed: ZeroDivisionError: division by zero"
    assert result is None
    assert not bad.samples
    assert good.samples


def test_threads_are_limited_and_restored() -> None:
    pools = pytest.importorskip("threadpoolctl")
    before = pools.threadpool_info()
    with _timing.conditions(lane(None, threads=1)):
        assert {p["num_threads"] for p in pools.threadpool_info()} <= {1}
    assert pools.threadpool_info() == before


def train(cores: list[np.ndarray]) -> tt.TT:
    return tt.TT([jnp.asarray(c) for c in cores])


def test_doubled_trains_have_twice_the_ranks_they_need(rng: np.random.Generator) -> None:
    cores = _cases.random_train(rng, (6,) * 5, 4)
    twice = _cases.doubled(cores)
    assert train(twice).ranks == (1, 8, 8, 8, 8, 1)
    np.testing.assert_allclose(_cases.to_dense(twice), 2 * _cases.to_dense(cores), rtol=1e-12)
    assert tt.round(train(twice), tol=1e-6).ranks == (1, 4, 4, 4, 4, 1)


def test_decaying_trains_round_to_about_the_rank_claimed(rng: np.random.Generator) -> None:
    rounded = tt.round(train(_cases.decaying_train(rng, (10,) * 4, 100, 50)), tol=_cases.TOL)
    assert 44 <= max(rounded.ranks) <= 54


def test_dense_cases_have_the_ranks_claimed(rng: np.random.Generator) -> None:
    terms = _cases.terms_tensor(rng, (8,) * 5)
    assert tt.from_dense(terms, tol=_cases.TOL).ranks == (1, 8, 16, 16, 8, 1)
    assert max(tt.from_dense(terms, tol=1e-10).ranks) > 16  # the noise is there
    harmonic = _cases.harmonic_tensor((4,) * 6)
    assert max(tt.from_dense(harmonic, tol=_cases.TOL).ranks) <= 8
    assert harmonic[0, 0, 0, 0, 0, 0] == 1
    assert math.isclose(harmonic[-1, -1, -1, -1, -1, -1], 1 / 7)


def test_references_are_exact(rng: np.random.Generator) -> None:
    x, a = _cases.random_train(rng, (3, 4, 5), 2), _cases.laplacian(3, 4)
    dense = _cases.to_dense(x)
    indices = rng.integers((3, 4, 5), size=(7, 3))
    np.testing.assert_allclose(_cases.entries(x, indices), dense[tuple(indices.T)], rtol=1e-12)
    assert math.isclose(_cases.inner(x, x), float((dense**2).sum()), rel_tol=1e-12)
    y = _cases.random_train(rng, (4, 4, 4), 2)
    second = 2 * np.eye(4) - np.eye(4, k=1) - np.eye(4, k=-1)
    want = sum(
        np.moveaxis(np.tensordot(second, _cases.to_dense(y), (1, k)), 0, k) for k in range(3)
    )
    np.testing.assert_allclose(_cases.to_dense(_cases.applied(a, y)), want, atol=1e-12)


def tiny_cases(group: str) -> Iterator[Case]:
    return _cases.GROUPS[group](TINY, np.random.default_rng(0))


@pytest.mark.parametrize("group", _cases.GROUPS)
def test_our_results_are_right(group: str) -> None:
    ours = _library.Tensorjax()
    for case in tiny_cases(group):
        _, call = next(getattr(ours, case.operation)(**case.inputs))
        plain = ours.plain(call())
        assert case.error(plain) <= (0.2 if group == "projection" else 10 * case.tolerance)
        assert case.goals


def test_missing_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    no_peers(monkeypatch)
    libraries, rows = _peers.load()
    assert [row["peer"] for row in rows] == [peer.name for peer in _peers.PEERS]
    assert all("is not installed" in row["missing because"] for row in rows)
    assert not any(library.peer for library in libraries)
    assert libraries[0].name == "tensorjax"


def test_peers_can_be_left_out() -> None:
    _, rows = _peers.load(("quimb",))
    (reason,) = [row["missing because"] for row in rows if row["peer"] == "quimb"]
    assert reason in ("left out by --skip", "'quimb' is not installed")


@pytest.mark.parametrize("peer", _peers.PEERS, ids=lambda peer: peer.name)
def test_peers_do_what_is_asked_of_them(peer: type[_library.Library]) -> None:
    for name in peer.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip(name, exc_type=ImportError)
    library = peer()
    with (
        core.double_precision(),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):
        for case in (case for group in _cases.GROUPS for case in tiny_cases(group)):
            left_out: list[Result] = []
            for variant, call in core.ways(case, library, left_out):
                result, _ = core.begin(case, library, variant, call)
                assert not result.note, (case.name, result)
            assert all(r.note.startswith("not run") for r in left_out), left_out


CASE = Case(
    group="g",
    name="c",
    operation="round_rank",
    inputs={},
    error=lambda plain: 0.0,
    goals=(Goal("fastest peer", 2.0), Goal("floor", at_most=4.0), Goal("absent", 1.0)),
    tolerance=1e-6,
    most_programs=1,
)


def results(**peer: Any) -> list[Result]:
    ours = Result("tensorjax", "", median=1.0, programs=1, error=1e-7)
    other = Result("p", "", peer=True, median=3.0, error=1e-7)
    return [ours, dataclasses.replace(other, **peer), Result("floor", "", median=0.5)]


def test_targets_tell_what_was_reached() -> None:
    peer, floor, absent, programs = _verdicts.targets(CASE, _verdicts.judge(CASE, results()))
    assert (peer.reached, peer.asked, peer.met) == (3.0, "at least 2", "yes")
    assert (floor.reached, floor.asked, floor.met) == (2.0, "at most 4", "yes")
    assert (absent.reached, absent.met) == (None, "no peer")
    assert (programs.reached, programs.met) == (1, "yes")
    numbers = _verdicts.summary([peer, floor, absent, programs])
    assert (numbers["targets"], numbers["targets met"]) == (4, 3)
    assert numbers["g: least share of a goal"] == 1.5


@pytest.mark.parametrize(
    ("peer", "met"),
    [
        ({"median": 1.99}, "within 5 %"),
        ({"median": 1.5}, "no"),
        ({"error": 1e-8}, "no: error"),
        ({"error": 1e-3}, "no peer"),  # too wrong to be a yardstick
        ({"note": "failed"}, "no peer"),
    ],
)
def test_verdicts(peer: dict[str, Any], met: str) -> None:
    judged = _verdicts.judge(CASE, results(**peer))
    assert _verdicts.targets(CASE, judged)[0].met == met


@pytest.mark.slow
def test_a_quick_run_without_peers_writes_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_peers(monkeypatch)
    monkeypatch.setattr(core, "SMALL", TINY)
    before = getattr(jax.config, FLAG)
    options = ["--quick", "--repeats", "1", "--only", "svd", "--results", str(tmp_path)]
    assert main(["run", "bench/core", *options]) == 0
    assert getattr(jax.config, FLAG) == before
    (line,) = (tmp_path / "bench" / "core" / "runs.jsonl").read_text().splitlines()
    run = json.loads(line)
    assert run["metrics"]["targets"] == 4
    assert run["metrics"]["targets without a peer"] == 2
    folder = tmp_path / "bench" / "core" / run["run"]
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["peers.csv", "ratios.png", "targets.csv", "tt_svd.csv", "work.csv"]
    table = (folder / "tt_svd.csv").read_text().splitlines()
    assert table[0].startswith("case,competitor,median ms,× ours,first s,programs,error,max rank")
    assert sum(",tensorjax," in row for row in table) == 2
    assert "torchTT" in (folder / "peers.csv").read_text()


def test_verdicts_on_solvers_count_only_peers_that_come_as_near():
    def row(
        library: str, seconds: float | None, error: float | None, evaluations: Any = None
    ) -> Any:
        return {"problem": "p", "library": library, "variant": "v", "seconds": seconds,
                "error": error, "evaluations": evaluations}  # fmt: skip

    problem = Problem("p", [], 2.0)
    rows = [row("tensorjax", 1.0, 1e-6, 100), row("tensorjax", 0.5, 1e-6, 100),
            row("fast but wrong", 0.1, 1e-2, 10), row("failed", None, None),
            row("near", 3.0, 2e-6, 400), row("slow", 9.0, 1e-9, 300)]  # fmt: skip
    (found,) = solvers.verdict(problem, rows)
    assert found["peer"] == "near v"
    assert found["ratio"] == 6.0
    assert found["goal"] == 2.0
    assert found["evaluations"] == 3.0
    (alone,) = solvers.verdict(problem, rows[:4])
    assert alone["ratio"] is None


@pytest.mark.slow
def test_the_solvers_run_small(tmp_path: Path) -> None:
    # One group of each kind of answer: all of them are in the quick run, which .ci/run makes too.
    options = ["--quick", "--only", "cross", "systems", "--results", str(tmp_path)]
    assert main(["run", "bench/solvers", *options]) == 0
    (line,) = (tmp_path / "bench" / "solvers" / "runs.jsonl").read_text().splitlines()
    assert {t["file"] for t in json.loads(line)["tables"]} >= {"cross.csv", "ratios.csv"}


def test_verdicts_on_layers_take_every_library_at_its_fastest():
    def row(library: str, variant: str, ms: float | None) -> Any:
        return {"library": library, "variant": variant, "ms": ms}

    rows = [row("tensorjax", "", 2.0), row("tensorjax", "by hand", 1.0), row("JAX", "dense", 5.0),
            row("tensorly-torch", "a", 9.0), row("tensorly-torch", "b", 5.0),
            row("torch", "dense", None)]  # fmt: skip
    found = layers.verdict(Problem("p", [], 2.0), rows)
    assert found == {
        "problem": "p", "ours ms": 2.0, "JAX": 2.5, "tensorly-torch": 2.5, "goals": 2,
        "missed": "tensorly-torch 3",
    }  # fmt: skip
    assert layers.verdict(Problem("p", [], None), rows[:3])["missed"] == ""


def test_the_released_formula_gives_the_outputs_of_the_layer():
    from experiments.bench import _linears

    (problem, *_) = _linears.problems(small=True)
    for way in problem.ways[:3]:
        assert way.answer(way.call())["error"] < 1e-5


@pytest.mark.slow
def test_the_layers_run_small(tmp_path: Path) -> None:
    # The groups that are not in the quick run, which .ci/run makes too, and one that is.
    groups = ("linear", "embedding-step", "adaptation")
    options = ["--quick", "--only", *groups, "--results", str(tmp_path)]
    assert main(["run", "bench/layers", *options]) == 0
    (line,) = (tmp_path / "bench" / "layers" / "runs.jsonl").read_text().splitlines()
    found = {t["file"] for t in json.loads(line)["tables"]}
    assert found >= {"linear.csv", "ratios.csv", "adaptation.csv"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_plain_projection_by_a_train_is_ours(dtype: str) -> None:
    rng = np.random.default_rng(120)
    with jax.enable_x64(True):
        for _ in range(3):
            _, train = _shapes.sketch_jobs(rng, dtype, 3e4)
            ours, theirs = np.asarray(train.ours()), train.plain["NumPy"]()
            assert ours.dtype == theirs.dtype == dtype
            assert np.abs(ours - theirs).max() < 1e3 * np.finfo(dtype).eps * np.abs(ours).max()


class Peer(_library.Library):
    """Peer whose TT-SVD is right, wrong, or refused."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name  # pyright: ignore[reportAttributeAccessIssue]

    def plain(self, result: Any) -> Any:
        return result

    def svd(self, x: np.ndarray, tol: float) -> Any:
        if self.name == "refuses":
            raise ValueError("of this shape")
        factor = 0.5 if self.name == "wrong" else 1.0
        yield "", lambda: [factor * core for core in _plain.svd_tt_svd(x, tol)]

        def fails() -> Any:
            raise TypeError("of this dtype")

        yield "fails", fails


def test_peers_of_drawn_shapes_count_where_they_are_accurate() -> None:
    case = _drawn.Dense((5, 6, 7), "float64", 1e-6, "low rank", seed=104)
    with jax.enable_x64(True):
        job = _shapes.dense_job(case, [Peer("right"), Peer("wrong"), Peer("refuses")])
        row = job.run()
    assert set(job.peers) == {"right", "right fails", "wrong", "wrong fails"}
    assert "right" in job.seconds
    assert not {"wrong", "right fails", "wrong fails"} & job.seconds.keys()
    assert row["ours / other"] > 0
    assert row["speed-up over peers"] == min(job.seconds["right"]) / min(job.seconds["ours"])
    assert row["error / allowed"] <= 1


@pytest.mark.parametrize("dtype", sorted(set(_drawn.DTYPES)))
def test_rows_of_every_drawn_dtype_are_projected(dtype: str) -> None:
    with jax.enable_x64(True):
        jobs = list(_shapes.sketch_jobs(np.random.default_rng(3), dtype, 3e4))
        assert len(jobs) == 2
        assert all(job.ours().shape[1] == 24 for job in jobs)


def test_a_summary_counts_what_is_slow_or_wrong() -> None:
    common = {"group": "TT-SVD", "first ms": 4e3, "ours ms": 1e3}
    rows = [common | {"ours / other": r, "error / allowed": e} for r, e in ((1.5, 2.0), (0.5, 0.5))]
    rows.append(common | {"ours / other": None, "error / allowed": None})
    (total,) = _shapes.summary(rows)
    assert (total["cases"], total["median"], total["worst"]) == (3, 1.0, 1.5)
    assert (total["above 1.3"], total["tolerance missed"]) == (1, 1)
    assert total["longest first call over warm s"] == 3
    assert total["speed-up over peers"] == ""
    (total,) = _shapes.summary([row | {"speed-up over peers": 2.0} for row in rows])
    assert total["speed-up over peers"] == "2, 2, 2"
