"""Solutions as datasets of xarray: statistics of steps, moments and marginals of saved states."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax import _extras
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._observables.densities import moments
from tensorjax.pde._observables.marginals import marginal

# Half width of the interval of a marginal, in standard deviations.
_REACH = 6.0


def dataset(
    stats: dict[str, Any],
    ts: np.ndarray,
    ys: Sequence[Any],
    box: Box | None,
    points: int,
    attributes: dict[str, str],
) -> Any:
    """Builds the `xarray.Dataset` of `Solution.to_xarray` from the parts of a solution."""
    with _extras.needed_by("to_xarray"):
        import xarray  # pyright: ignore[reportMissingImports]
    arrays = _steps(stats) | _saved(ts, ys, box, points)
    coordinates = {k: arrays.pop(k) for k in list(arrays) if k in ("t", "step_t") or k[:2] == "x_"}
    return xarray.Dataset(arrays, coordinates, attributes)


def _steps(stats: dict[str, Any]) -> dict[str, Any]:
    """Names the xarray dimensions of the statistics of a PDE integration's time steps."""
    more = {"ranks": ("bond",), "sigma": ("axis", "axis_2"), "beta": ("axis",)}
    more["resting"] = ("axis",)
    out: dict[str, Any] = {}
    for name, values in stats.items():
        array = np.asarray(values)
        at = "step_t" if name == "t" else name
        out[at] = (("step", *more.get(name, ()))[: array.ndim], array)
    return out


def _saved(ts: np.ndarray, ys: Sequence[Any], box: Box | None, points: int) -> dict[str, Any]:
    """Builds the xarray variables of saved states: matrices, moments and marginals."""
    out: dict[str, Any] = {"t": (("t",), np.asarray(ts))}
    if not all(hasattr(y, "map") and hasattr(y, "v") for y in ys):  # no states
        values = np.array(ys)
        if values.dtype == object:
            raise ValueError(
                "ys: expected results of fn of one shape, numbers or arrays, got others; return "
                "one array from SaveAt(fn=)"
            )
        dims = tuple(f"y_{k}" for k in range(1, values.ndim))
        return out | {"y": (("t", *dims), values)}
    out["matrix"] = ("t", "axis", "axis_2"), np.array([np.asarray(y.map.matrix) for y in ys])
    out["shift"] = ("t", "axis"), np.array([np.asarray(y.map.shift) for y in ys])
    if box is None:
        return out
    total, mean, covariance = (
        np.array(m) for m in zip(*(moments(y.v, y.map, box) for y in ys), strict=True)
    )
    out["total"] = ("t",), total
    out["mean"] = ("t", "axis"), mean
    out["covariance"] = ("t", "axis", "axis_2"), covariance
    width = _REACH * np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    for k in range(box.dim):
        x = np.linspace((mean - width)[:, k].min(), (mean + width)[:, k].max(), points)
        rows = [marginal(y.v, y.map, box, (k,), points=[x])[1] for y in ys]
        out[f"x_{k}"] = (f"x_{k}",), x
        out[f"marginal_{k}"] = ("t", f"x_{k}"), np.array(rows)
    return out
