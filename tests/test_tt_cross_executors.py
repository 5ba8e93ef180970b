"""Executors of `tt.cross`: processes, threads, clients of clusters; errors in workers, the end."""

import concurrent.futures
import multiprocessing
import os
from concurrent.futures.process import BrokenProcessPool

import jax
import numpy as np
import pytest

from tensorjax import tt
from tests import worker_functions
from tests.worker_functions import Client

SHAPE = (6,) * 4


def search(f, executor, **options):
    """Not small enough to be read: the parts of many batches."""
    options = {"tol": 1e-8, "key": jax.random.key(0), "search": 0, **options}
    return tt.cross(f, SHAPE, executor=executor, **options)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a.cores, b.cores, strict=True))


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        yield pool


def test_the_result_is_that_without_an_executor(processes):
    """Whatever the order in which the parts of a batch are done."""
    t, info = search(worker_functions.fractions, None)
    client = Client()
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for executor in (processes, threads, client):
            for f in (worker_functions.fractions, worker_functions.slow_at_first):
                u, told = search(f, executor)
                assert same(t, u)
                assert told.evaluations == info.evaluations
    assert client.pending == 0


@pytest.mark.slow  # the worker imports the library
def test_functions_of_one_multi_index_in_processes(processes):
    t, _ = search(worker_functions.fractions, None)
    assert same(t, search(worker_functions.one_fraction, processes, vectorized=False)[0])


def test_errors_in_workers_name_the_entry(processes):
    client = Client()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for executor in (processes, threads, client):
            with pytest.raises(KeyError, match="no license") as caught:
                search(worker_functions.raises, executor)
            assert "at multi-index (5, 0, 1, " in "".join(caught.value.__notes__)
            t, info = search(worker_functions.raises, executor, on_error="return")
            assert info.status == "failed"
            assert t.shape == SHAPE
    assert client.pending == 0
    t, _ = search(worker_functions.fractions, None)
    assert same(t, search(worker_functions.fractions, processes)[0])  # the pool is still of use


def test_a_worker_that_dies_is_told_of_and_ends_no_other_process(monkeypatch):
    monkeypatch.setenv("PYTEST_CURRENT_TEST_OF", str(os.getpid()))
    before = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        with pytest.raises(BrokenProcessPool) as caught:
            search(worker_functions.dies, pool)
        assert "a worker died" in "".join(caught.value.__notes__)
    assert multiprocessing.active_children() == before


def test_what_processes_cannot_be_sent_is_told_of(processes):
    with pytest.raises(Exception, match="pickle") as caught:
        search(lambda i: 1.0 * i.sum(axis=1), processes)
    assert "top level of a module" in "".join(caught.value.__notes__)


def test_no_part_is_evaluated_after_an_error():
    """Parts that wait for a worker are given up."""
    calls = []

    def f(i):
        calls.append(len(i))
        if len(calls) > 40:
            raise RuntimeError("no license at all")
        return worker_functions.fractions(i)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with pytest.raises(RuntimeError, match="no license at all"):
            search(f, pool)
        known = len(calls)
        pool.submit(abs, 1).result()  # behind all that was left in the queue
        assert len(calls) <= known + 1
