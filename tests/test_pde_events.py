"""Dense output, events, and export of solutions."""

import sys
import types
from typing import Any

import numpy as np
import pytest

from tensorjax import pde

BOX = pde.Box.fourier(2, 48, 7.0)


def process(rng: np.random.Generator) -> pde.OrnsteinUhlenbeck:
    turn, rate = rng.uniform(1, 3), rng.uniform(0.2, 0.6)
    start = pde.Gaussian([1.0, 0.0], np.diag(rng.uniform(0.3, 0.8, 2)))
    return pde.OrnsteinUhlenbeck([[-rate, turn], [-turn, -rate]], 0.1, start, BOX)


@pytest.mark.parametrize(
    ("method", "coordinates"), [("rk4", "fixed"), ("rk4", "adaptive"), ("ab3", "adaptive")]
)
def test_states_between_steps_are_as_exact_as_those_at_steps(method: Any, coordinates: Any, rng):
    problem, x = process(rng), rng.normal(0, 0.7, (200, 2))
    solution = pde.integrate(
        problem, t1=0.4, tol=1e-5, method=method, coordinates=coordinates,
        saveat=pde.SaveAt(steps=1, dense=True),
    )  # fmt: skip
    times = rng.uniform(0, 0.4, 6)

    def error(state: pde.State) -> float:
        exact = problem.exact(state.t, x)
        found = pde.evaluate(state.v, state.map, BOX, x)
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    largest = max(map(error, solution.ys))
    for t in times:
        state = solution.evaluate(t)
        assert state.t == t
        assert error(state) < 3 * largest + 1e-5
    for t, y in zip(solution.ts, solution.ys, strict=True):
        again = solution.evaluate(t)
        assert again.t == y.t
        assert all(np.array_equal(a, b) for a, b in zip(again.v.cores, y.v.cores, strict=True))
    with pytest.raises(ValueError, match="expected a time in"):
        solution.evaluate(0.5)
    bare = pde.integrate(problem, t1=0.1, dt=0.05, tol=1e-3)
    with pytest.raises(ValueError, match="dense=True"):
        bare.evaluate(0.05)


@pytest.mark.parametrize("coordinates", ["fixed", "adaptive"])
def test_runs_stop_where_a_function_changes_sign(coordinates: Any, rng):
    problem = process(rng)
    turn = problem.matrix[0, 1]

    def mean(k: int) -> Any:
        return lambda s: pde.moments(s.v, s.map, BOX)[1][k]

    cases = [
        (pde.Event(mean(0)), np.pi / 2 / turn),
        (pde.Event(mean(0), direction=1), None),
        ([pde.Event(mean(1), direction=1), pde.Event(mean(0), direction=-1)], np.pi / 2 / turn),
    ]
    for event, when in cases:
        solution = pde.integrate(
            problem, t1=2.5 / turn, tol=1e-5, coordinates=coordinates, event=event,
            saveat=pde.SaveAt(t1=True, dense=True),
        )  # fmt: skip
        if when is None:
            assert solution.result == pde.Result.successful
            continue
        assert solution.result == pde.Result.event
        assert abs(solution.final.t - when) < 1e-3
        assert solution.stats["t"][-1] == solution.final.t == solution.ts[-1]
        assert abs(mean(0)(solution.final)) < 1e-3
        assert solution.evaluate(solution.final.t).t == solution.final.t
        with pytest.raises(ValueError, match="expected a time in"):
            solution.evaluate(solution.final.t + 0.01)


def test_runs_stop_at_rest(rng):
    rate = rng.uniform(0.8, 2.0)
    start = pde.Gaussian([1.0], [[0.2]])
    problem = pde.OrnsteinUhlenbeck([[-rate]], 0.4 * rate, start, pde.Box.fourier(1, 48, 5.0))
    solution = pde.integrate(problem, t1=99.0, tol=1e-5, event=pde.SteadyState(over=1.0))
    assert solution.result == pde.Result.event
    x = np.linspace(-2, 2, 50)[:, None]
    found = pde.evaluate(solution.final.v, solution.final.map, problem.box, x)
    exact = problem.exact(99.0, x)
    assert np.linalg.norm(found - exact) < 3e-3 * np.linalg.norm(exact)


def test_events_that_cannot_be_are_refused(rng):
    problem = process(rng)
    for event in (
        pde.Event(3), pde.Event(abs, direction=2), pde.SteadyState(over=0.0), ["end"],  # pyright: ignore
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"expected|over"):
            pde.integrate(problem, t1=0.1, event=event)
    with pytest.raises(ValueError, match="event"):
        pde.integrate(
            problem, t1=0.1, dt=0.1, rank=4, coordinates="fixed", event=pde.SteadyState(1.0)
        )
    solution = pde.integrate(
        problem, t1=0.3, tol=1e-3, event=pde.Event(lambda s: np.nan if s.t > 0.1 else 1.0)
    )
    assert solution.result == pde.Result.failed
    assert "event 0 is nan" in solution.message


class Dataset:
    """Stands in for that of xarray: checks that dimensions agree."""

    def __init__(self, data: dict[str, Any], coords: dict[str, Any], attrs: dict[str, Any]):
        self.data, self.coords, self.attrs, sizes = data, coords, attrs, {}
        for dims, values in (data | coords).values():
            assert len(dims) == np.ndim(values)
            for name, size in zip(dims, np.shape(values), strict=True):
                assert sizes.setdefault(name, size) == size


def test_solutions_become_datasets(rng, monkeypatch):
    try:
        import xarray  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        problem = process(rng)
        bare = pde.integrate(problem, t1=0.1, dt=0.05, tol=1e-3)
        with pytest.raises(ModuleNotFoundError, match=r"tensorjax\[xarray\]"):
            bare.to_xarray()
        monkeypatch.setitem(sys.modules, "xarray", types.SimpleNamespace(Dataset=Dataset))
    problem, saved = process(rng), pde.SaveAt(ts=(0.05, 0.1))
    solution = pde.integrate(problem, t1=0.1, dt=0.05, tol=1e-3, saveat=saved)
    found: Any = solution.to_xarray(BOX, points=80)
    x, rows = found.coords["x_1"][1], found.data["marginal_1"][1]
    assert rows.shape == (2, 80)
    np.testing.assert_allclose(rows.sum(1) * (x[1] - x[0]), 1, atol=1e-2)
    np.testing.assert_allclose(found.data["mean"][1][-1], problem.moments(0.1)[1], atol=1e-2)
    assert found.attrs["result"] == "successful"
    values = pde.integrate(problem, t1=0.1, dt=0.05, saveat=saved._replace(fn=lambda s: s.t))
    assert values.to_xarray().data["y"][1].tolist() == [0.05, 0.1]
