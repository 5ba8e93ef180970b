"""Compares the state of this process before and after calls; prints what a call has left changed.

Run by `test_process_state.py` in a process of its own, with one device, as users have it.
"""

import itertools
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import monitoring

from tensorjax import _blas_threads, contract, convert, linalg, pde, sketch, tt, tucker
from tensorjax._formats.trains import TT, TTMatrix

MODULES = ("numpy.linalg._umath_linalg", "scipy.linalg._fblas")
THREADS = 2  # of BLAS: another number than functions set for a while


def blas() -> list[int]:
    """Threads of the BLAS of NumPy and of SciPy."""
    return [found[0]() for name in MODULES if (found := _blas_threads.controls(name))]


def cpus() -> dict[str, Any]:
    """CPUs of the threads that are there, by thread; those that a kernel starts are its own."""
    named = {thread.native_id: thread.name for thread in threading.enumerate()}
    return {name: sorted(os.sched_getaffinity(tid or 0)) for tid, name in named.items()}


def state() -> dict[str, Any]:
    """What calls of the library must leave as they find it."""
    return {
        "blas": blas(),
        "cpus": cpus()["MainThread"],
        "listeners": len(monitoring.get_event_duration_listeners()),
        "config": {name: str(value) for name, value in sorted(jax.config.values.items())},
        "errors": np.geterr(),
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "namespaces": [TT._namespace, TTMatrix._namespace, tucker.Tucker._namespace],
        "random": [str(x) for x in np.random.get_state()],  # noqa: NPY002  (the state looked at)
        "umask": _umask(),
    }


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def refused(call: Callable[[], Any]) -> Callable[[], None]:
    """A call that is to raise: errors, too, leave everything as it was."""

    def wrapped() -> None:
        try:
            call()
        except (ValueError, TypeError, ArithmeticError):
            return
        raise AssertionError("expected an error")

    return wrapped


def calls(rng: np.random.Generator) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls of the functions that set something for a while, on drawn inputs."""
    modes = tuple(rng.integers(4, 9, 5).tolist())
    x = rng.standard_normal(modes)
    low = tt.to_dense(tt.random(jax.random.key(int(rng.integers(99))), modes, 2))
    train = tt.random(jax.random.key(int(rng.integers(99))), (60,) * 4, 40)
    bad = np.where(rng.random(modes) < 0.1, np.nan, x)

    def f(indices: Any) -> Any:
        return 1.0 / (1 + indices.sum(-1))

    random_map = sketch.ttrp(jax.random.key(0), (20, 15), (5, 4))
    wide = rng.standard_normal((300, 400))
    box = pde.Box.fourier(2, 16)
    heat = pde.OrnsteinUhlenbeck(-np.eye(2), np.eye(2), pde.Gaussian(np.zeros(2), np.eye(2)), box)
    yield "tt.from_dense", lambda: tt.from_dense(x, tol=0.3)
    yield "tt.from_dense of NaN", refused(lambda: tt.from_dense(bad, tol=0.1))
    yield "tt.round", lambda: tt.round(train, tol=0.1)
    yield "contract", lambda: contract.einsum("ij,jk,kl->il", wide, wide.T, wide)
    yield "contract, refused", refused(lambda: contract.einsum("ij,jk->ik", wide, wide))
    yield "pde.integrate", lambda: pde.integrate(heat, t1=0.02, tol=1e-3)
    yield "pde.integrate, refused", refused(lambda: pde.integrate(heat, t1=0.02, tol=-1.0))
    yield "offload", _stored
    yield "tt.from_dense of low rank", lambda: tt.from_dense(np.asarray(low), tol=1e-3)
    yield "tt.round to ranks", lambda: tt.round(train, rank=5)
    yield "tt.inner", lambda: tt.inner(train, train)
    yield "tt.cross", lambda: tt.cross(f, modes, tol=1e-3, key=jax.random.key(0))
    yield "tucker.from_dense", lambda: tucker.from_dense(x, rank=2)
    yield "linalg.truncated_svd", lambda: linalg.truncated_svd(wide, tol=0.5)
    yield "sketch", lambda: sketch.apply(random_map, wide[:, :300])
    yield "convert", lambda: convert.tt_to_tucker(train, rank=4)


def _stored() -> None:
    try:
        from tensorjax import offload
    except ImportError:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with offload.TensorStore(path, 1 << 20, backend="threads", staging=1 << 22) as store:
            store.reserve({"w": jax.ShapeDtypeStruct((64, 64), np.float32)})
            store.write("w", np.ones((64, 64), np.float32)).result()
            store.commit()


def main(most: int | None) -> None:
    """Prints a line for each change that a call leaves; nothing if there is none."""
    for name in MODULES:
        if found := _blas_threads.controls(name):
            found[1](THREADS)
    for seed in range(1 if most else 3):
        for name, call in itertools.islice(calls(np.random.default_rng(seed)), most):
            before = state()
            call()
            after = state()
            for what in before:
                if before[what] != after[what]:
                    print(f"{name} changes {what}: {before[what]} before, {after[what]} after")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
