"""Cross approximations of one function by this library and by peers: evaluations, cores, status."""

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.bench._solving import found
from tensorjax import tt


class Result(NamedTuple):
    """Result of a library.

    Attributes:
      cores: of the train; None if it raised an error or called f too often.
      evaluations: of f.
      status: of ours; "" of a peer that returned, else the name of the error.
    """

    cores: list[np.ndarray] | None
    evaluations: int
    status: str


class TooMany(Exception):
    """Raised by a function that was called more often than allowed."""


class Counted:
    """Function of multi-indices that counts the calls, and ends them."""

    def __init__(self, f: Callable[[np.ndarray], np.ndarray], most: int):
        self.count, self._f, self._most = 0, f, most

    def __call__(self, index: Any) -> np.ndarray:
        index = np.asarray(index).astype(np.int64)
        self.count += len(index)
        if self.count > self._most:
            raise TooMany
        return self._f(index)


Way = Callable[[Counted, tuple[int, ...], float, int, int], tuple[list[Any], str]]


def ours(f: Counted, shape: tuple[int, ...], tol: float, seed: int, most: int) -> Any:
    """`tt.cross` with its defaults."""
    t, info = tt.cross(f, shape, tol=tol, key=jax.random.key(seed), max_evaluations=most)
    return list(t.cores), info.status


def _torchtt(f: Counted, shape: tuple[int, ...], tol: float, seed: int, most: int) -> Any:
    torch, interpolate = found("torch"), found("torchtt.interpolate")
    torch.manual_seed(seed)
    t = interpolate.dmrg_cross(
        lambda index: torch.tensor(f(index.numpy())), list(shape), eps=tol, nswp=20
    )
    return [c.numpy() for c in t.cores], ""


def _teneva(f: Counted, shape: tuple[int, ...], tol: float, seed: int, most: int) -> Any:
    teneva = found("teneva")
    start = teneva.rand(list(shape), 1, seed=seed)
    return teneva.cross(f, start, e=tol, nswp=30, dr_min=1, dr_max=2, cache={}), ""


def _tntorch(f: Counted, shape: tuple[int, ...], tol: float, seed: int, most: int) -> Any:
    torch, tntorch = found("torch"), found("tntorch")
    torch.manual_seed(seed)
    domain = [torch.arange(n, dtype=torch.float64) for n in shape]
    t = tntorch.cross(
        function=lambda index: torch.tensor(f(index.numpy())), domain=domain, eps=tol,
        function_arg="matrix", max_iter=40, verbose=False, suppress_warnings=True,
    )  # fmt: skip
    return [c.numpy() for c in t.cores], ""


_PEERS: dict[str, tuple[str, Way]] = {
    "torchTT": ("torchtt", _torchtt),
    "teneva": ("teneva", _teneva),
    "tntorch": ("tntorch", _tntorch),
}


def ways() -> dict[str, Way]:
    """Ours, and the peers that are installed."""
    peers = {name: way for name, (module, way) in _PEERS.items() if found(module) is not None}
    return {"tensorjax": ours, **peers}


def call(way: Way, f: Any, shape: tuple[int, ...], tol: float, seed: int, most: int) -> Result:
    """Approximates f; an error is a result."""
    counted = Counted(f, most)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cores, status = way(counted, shape, tol, seed, most)
    except Exception as error:
        return Result(None, counted.count, type(error).__name__)
    return Result([np.asarray(c) for c in cores], counted.count, status)


def values(cores: list[np.ndarray], index: np.ndarray) -> np.ndarray:
    """Evaluates a train at multi-indices (m, d)."""
    with jax.enable_x64(True):
        return np.asarray(tt.evaluate(tt.TT(cores), index))
