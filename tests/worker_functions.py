"""Functions that workers of an executor get by name: processes cannot be sent what a test makes."""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def fractions(i: np.ndarray) -> np.ndarray:
    """1 / (1 + Σ i) of multi-indices (batch, d)."""
    return 1 / (1.0 + i.sum(axis=1))


def one_fraction(i: np.ndarray) -> float:
    """The same of one multi-index (d,)."""
    return 1 / (1.0 + int(i.sum()))


def raises(i: np.ndarray) -> np.ndarray:
    """Raises an error at multi-indices (5, 0, 1, _)."""
    if ((i[:, 0] == 5) & (i[:, 1] == 0) & (i[:, 2] == 1)).any():
        raise KeyError("no license")
    return fractions(i)


def dies(i: np.ndarray) -> np.ndarray:
    """Ends the process at multi-indices (5, _, 1, _), unless it is the one of the test."""
    if os.environ.get("PYTEST_CURRENT_TEST_OF") == str(os.getpid()):
        raise AssertionError("called in the process of the test")
    if ((i[:, 0] == 5) & (i[:, 2] == 1)).any():
        os._exit(3)
    return fractions(i)


def slow_at_first(i: np.ndarray) -> np.ndarray:
    """Takes the longer the sooner it is asked for: later parts of a batch are done first."""
    time.sleep(0.002 * max(0, 5 - int(i[0, 0])))
    return fractions(i)


class Client:
    """Client of a cluster as Dask's: futures of its own kind, no ``_max_workers``, no shutdown."""

    def __init__(self) -> None:
        self.pending = 0

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "ClientFuture":
        self.pending += 1
        return ClientFuture(self, function, arguments)


class ClientFuture:
    """Future of `Client`, evaluated when asked for."""

    def __init__(self, client: Client, function: Callable[..., Any], arguments: Any):
        self._client, self._function, self._arguments = client, function, arguments
        self._open = True

    def result(self) -> Any:
        self.cancel()
        return self._function(*self._arguments)

    def cancel(self) -> None:
        self._client.pending -= self._open
        self._open = False
