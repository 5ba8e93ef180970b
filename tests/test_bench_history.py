"""The record of times: its rows are calls that work; lines are added, read and compared."""

import json
import math

import jax
import pytest

from experiments.__main__ import main
from experiments.bench import _history_rows, history
from tensorjax import tt

ROWS = ("tt.inner, d 20, n 10, r 60", "tt.round(rank=), d 20, n 10, r 60")


@pytest.fixture
def few_rows(monkeypatch):
    every = _history_rows.rows()
    monkeypatch.setattr(history, "rows", lambda: {name: every[name] for name in ROWS})


def command(tmp_path, *options):
    results = ("--results", str(tmp_path), "--file", str(tmp_path / "history.jsonl"))
    return main(["run", "bench/history", "--repeats", "1", *options, *results])


def test_a_run_adds_a_line_and_compares_with_the_last_one(tmp_path, monkeypatch, few_rows):
    clean = {"hash": "0123456789abcdef", "dirty": False}
    monkeypatch.setattr(history._provenance, "commit", lambda: clean)
    assert command(tmp_path) == 0
    assert not (tmp_path / "history.jsonl").exists()
    for _ in range(2):
        assert command(tmp_path, "--record") == 0
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["commit"] for line in lines] == ["012345678"] * 2
    assert all(set(line["rows"]) == set(ROWS) for line in lines)
    ratios = [row["over the record before"] for row in history.table(lines[1], lines[0])]
    assert all(math.isfinite(ratio) and ratio > 0 for ratio in ratios)
    assert all(math.isnan(r["over the record before"]) for r in history.table(lines[1], None))


def test_a_record_needs_a_commit_without_changes(tmp_path, monkeypatch, few_rows):
    monkeypatch.setattr(history._provenance, "commit", lambda: {"hash": "0", "dirty": True})
    assert command(tmp_path, "--record") != 0
    assert not (tmp_path / "history.jsonl").exists()


def test_ratios_are_of_times_over_the_yardstick():
    slow = {"yardstick_s": 1.0, "rows": {"a": {"first_s": 1.0, "warm_s": 0.5, "programs": 0}}}
    fast = {"yardstick_s": 0.5, "rows": {"a": {"first_s": 1.0, "warm_s": 0.5, "programs": 0}}}
    assert history.table(fast, slow)[0]["over the record before"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(_history_rows.rows()))
def test_every_row_works(name):
    with history.double_precision():
        value = jax.block_until_ready(_history_rows.rows()[name]()())
    assert jax.tree.leaves(value) or isinstance(value, tt.TT)
