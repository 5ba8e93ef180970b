"""Measured speeds of a machine (disk, transfers, host optimiser) and times of a model's layers."""

import dataclasses
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._typing import DTypeLike, Optimizer, PyTree
from tensorjax.offload._store.backends import Backend
from tensorjax.offload._store.store import TensorStore
from tensorjax.offload._training.passes.engine import Engine
from tensorjax.offload._training.passes.layers import Layer, check_layers
from tensorjax.offload._training.storage.arrays import owned
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer

MIB = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Measured speeds of a machine: disk reads and writes, host-device transfers, host optimiser.

    Attributes:
      read, write: bytes per second from and to the disk, both going on at once.
      place: bytes per second between host and device.
      update: parameters per second that the optimiser updates in the memory of the host.

    Raises:
      ValueError: a speed that is not positive.

    Example:
      >>> from tensorjax import offload
      >>> offload.Machine(read=2e9, write=1e9, place=2e10, update=1e9).write
      1000000000.0
    """

    read: float
    write: float
    place: float
    update: float

    def __post_init__(self) -> None:
        """Raises ValueError unless all speeds of a machine are positive."""
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                value = getattr(self, field.name)
                raise ValueError(f"{field.name}: expected a positive speed, got {value!r}")


def measure(
    path: str | Path,
    optimizer: Optimizer,
    *,
    dtype: DTypeLike = jnp.float32,
    size: int = 128 * MIB,
    backend: str | Backend = "auto",
) -> Machine:
    """Measures a machine's speeds: disk, optimiser on the host, transfers to the device.

    Takes a few seconds, and four times ``size`` on the disk, which is freed again: half of that is
    written.

    Args:
      path: folder on the disk to measure; made if absent.
      optimizer: an Optax transformation.
      dtype: of the parameters that it updates.
      size: bytes that are read from the disk and as many that are written meanwhile, in parts of
        8 MiB, rounded down to whole parts; below 8 MiB, to 4096 bytes, the least. A quarter of them
        goes to the device.
      backend: of the `TensorStore`: a name of `backends()`, or an object.

    Returns:
      `Machine`, which `plan` takes.

    Raises:
      TypeError: a dtype that is not floating.
      ValueError: a size below 4096 bytes.

    Example:
      >>> import tempfile, optax
      >>> from tensorjax import offload
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     found = offload.measure(folder, optax.sgd(0.1), size=1 << 16, backend="threads")
      >>> found.read > 0 and found.write > 0
      True

    Source: ours.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dtype: expected a floating one, got {dtype!r}")
    _check.integer("size", size, low=4096)
    Path(path).mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="measure-", dir=path)
    try:
        read, write = _disk(folder, size, backend)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    update = _update(optimizer, jnp.dtype(dtype))
    return Machine(read=read, write=write, place=_place(size // 4), update=update)


def layer_seconds(
    layers: Sequence[Layer],
    params: Mapping[str, Any],
    batch: PyTree,
    engine: Engine,
    *,
    key: jax.Array | None = None,
    repeats: int = 3,
) -> dict[str, tuple[float, float]]:
    """Measures the seconds of each layer's forward and backward pass on this machine.

    Layers of one function, one kind of parameters and one kind of input are measured once. Two
    layers are on the device at a time.

    Args:
      layers: sequence of `Layer`, as for `Trainer`.
      params: parameters by group, or functions that return them, as for `Trainer`.
      batch: one microbatch, a pytree of arrays.
      engine: `Engine` that computes.
      key: of `jax.random`, for layers that draw.
      repeats: runs whose median counts, after one that compiles; at least one.

    Returns:
      A dictionary from the name of each layer to (forward, backward) in seconds.

    Raises:
      TypeError, ValueError: layers and parameters that `Trainer` would refuse.
      ValueError: ``repeats`` below 1.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import offload
      >>> layers = [offload.Layer(name="a", apply=lambda p, x, b, key: jnp.mean((b @ p[0]) ** 2))]
      >>> params = {"a": jnp.ones((4, 2))}
      >>> seconds = offload.layer_seconds(layers, params, jnp.ones((3, 4)), offload.Engine())
      >>> min(seconds["a"]) > 0
      True

    Source: ours.
    """
    _check.integer("repeats", repeats, low=1)
    layers = check_layers(layers, params)
    found: dict[str, tuple[float, float]] = {}
    known: dict[Any, tuple[Any, tuple[float, float]]] = {}
    x, batch = None, engine.batch(batch)
    for layer in layers:
        last = layer is layers[-1]
        shapes = [jax.eval_shape(params[g]) if callable(params[g]) else params[g]
                  for g in layer.uses]  # fmt: skip
        kind = (
            layer.apply,
            last,
            str(jax.tree.map(lambda s: (s.shape, str(s.dtype)), (shapes, x))),
        )
        if kind not in known:
            mine = tuple(
                engine.place(g, params[g]() if callable(params[g]) else params[g])
                for g in layer.uses
            )
            try:
                known[kind] = _one_layer(layer, mine, x, batch, key, engine, repeats, last=last)
            except Exception as error:
                error.add_note(f"in layer {layer.name!r}, which was measured")
                raise
        x, found[layer.name] = known[kind]
    return found


def _one_layer(
    layer: Layer,
    mine: Any,
    x: Any,
    batch: Any,
    key: Any,
    engine: Engine,
    repeats: int,
    *,
    last: bool,
) -> tuple[Any, tuple[float, float]]:
    if last:
        both = _median(
            lambda: engine.wait(engine.last(layer, mine, x, batch, key, 1.0, None)), repeats
        )
        return x, (both / 3, both * 2 / 3)
    y, kept = engine.wait(engine.forward(layer, mine, x, batch, key))
    dy = jax.tree.map(jnp.ones_like, y)
    forward = _median(lambda: engine.wait(engine.forward(layer, mine, x, batch, key)), repeats)
    backward = _median(
        lambda: engine.wait(engine.backward(layer, mine, x, batch, key, kept, dy, None)), repeats
    )
    return y, (forward, backward)


def _median(work: Callable[[], Any], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _disk(folder: str, size: int, backend: Any) -> tuple[float, float]:
    """Measures the disk's read and write speeds under simultaneous use, in bytes per second."""
    part = min(8 * MIB, size // 4096 * 4096)
    count = size // part
    specs = {f"{kind}{n}": jax.ShapeDtypeStruct((part,), np.uint8)
             for kind in "ab" for n in range(count)}  # fmt: skip
    data = np.random.default_rng(0).integers(0, 256, part, np.uint8)
    capacity = 2 * 2 * count * part + 64 * MIB
    with TensorStore(folder, capacity, backend=backend, staging=128 * MIB) as store:
        store.reserve(specs)
        for future in [store.write(name, data) for name in specs if name.startswith("a")]:
            future.result()
        store.commit()
        seconds: dict[str, float] = {}

        def move(kind: str, start: Callable[[], list[Future[Any]]]) -> None:
            began = time.perf_counter()
            for future in start():
                lease = future.result()
                if lease is not None:
                    lease.release()
            seconds[kind] = time.perf_counter() - began

        threads = [
            threading.Thread(
                target=move, args=("read", lambda: [store.read(f"a{n}") for n in range(count)])
            ),
            threading.Thread(
                target=move,
                args=("write", lambda: [store.write(f"b{n}", data) for n in range(count)]),
            ),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if len(seconds) < 2:
        raise OSError(f"{folder}: could not be read and written; see the threads' errors above")
    return count * part / seconds["read"], count * part / seconds["write"]


def _place(size: int) -> float:
    engine, data = Engine(), np.ones(size // 4, np.float32)
    return 4 * data.size / _median(lambda: engine.wait(engine.place("", data)), 3)


def _update(optimizer: Any, dtype: Any) -> float:
    host = HostOptimizer(optimizer)
    numbers = 1 << 23
    params = owned(np.ones(numbers, dtype))
    gradient = owned(np.ones(numbers, dtype))
    state = host.init(params)

    def work() -> None:
        nonlocal params, state
        params, state = host.update(params, state, gradient, None, into="place")

    return numbers / _median(work, 5)
