"""Times of the parts of a training step, each alone: all tries, for the lower bound."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from experiments.offload.variants import Setting
from tensorjax import offload

Tries = dict[str, list[float]]


def parts(setting: Setting, repeats: int) -> Tries:
    """Measures the seconds of reads, writes, updates and the first layer's share, for every try."""
    moved, updated = moving(setting, repeats), updating(setting, repeats)
    first = [sum(pair) for pair in zip(moved["first"], updated["first"], strict=True)]
    return {"read": moved["read"], "write": moved["write"], "update": updated["update"],
            "first": first}  # fmt: skip


def moving(setting: Setting, repeats: int) -> Tries:
    """Measures the seconds of a step's reads and writes, at the same time, from one store.

    And those of the first layer's share.

    Parameters are read for the forward pass, and with the state for the backward pass and the
    update, which share them: no exact step from disk can do with less. Parameters and state are
    written once. Both go through one store, at once, and nothing else is done.
    """
    specs = offload.tensors(setting.params(), setting.optimizer())
    with setting.store("auto") as store:
        store.reserve(specs)
        arrays = {name: np.zeros(s.shape, s.dtype) for name, s in specs.items()}
        _write(store, arrays)
        reads, writes, alone = [], [], []
        first = [n for n in specs if n.split("/")[0] in setting.layers()[0].uses]
        for _ in range(repeats):
            store.commit()  # so that reads begin in one slot and writes in the other
            seconds: dict[str, float] = {}
            threads = [
                threading.Thread(target=_timed, args=(seconds, "read", _read, store, specs)),
                threading.Thread(target=_timed, args=(seconds, "write", _write, store, arrays)),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            reads.append(seconds["read"])
            writes.append(seconds["write"])
            start = time.perf_counter()
            _wait([store.read_many(first)])
            alone.append(time.perf_counter() - start)
    return {"read": reads, "write": writes, "first": alone}


def updating(setting: Setting, repeats: int) -> Tries:
    """Measures the seconds of optimiser updates of all groups, and of the first layer's.

    One block is updated and counted as often as there are blocks: all of them need not fit memory.
    """
    small = dataclasses.replace(setting, few=True)
    layers = small.layers()
    counts = dict.fromkeys(layers[1].uses, len(setting.layers()) - 2)
    with offload.Trainer(
        layers, small.params(), small.optimizer(), engine=small.emulated(0.0)
    ) as trainer:
        for _ in range(repeats + 1):
            trainer.step(small.data())
            trainer.flush()
        spans = [s for s in trainer.trace.spans("update") if s.step > 0]
    steps = sorted({s.step for s in spans})
    whole = [sum(s.seconds * counts.get(s.name, 1) for s in spans if s.step == k) for k in steps]
    first = [sum(s.seconds for s in spans if s.step == k and s.name in layers[0].uses)
             for k in steps]  # fmt: skip
    return {"update": whole, "first": first}


def computing(setting: Setting, engine: offload.Engine, repeats: int) -> list[float]:
    """Measures the seconds of forward and backward pass in memory, without updates."""
    layers, data = setting.layers(), setting.data()
    params = {n: jax.block_until_ready(draw()) for n, draw in setting.params().items()}

    def step() -> None:
        x, inputs = None, []
        for layer in layers[:-1]:
            mine = tuple(params[g] for g in layer.uses)
            inputs.append(x)
            x = engine.wait(engine.forward(layer, mine, x, data, None)[0])
        mine = tuple(params[g] for g in layers[-1].uses)
        _, dy, sums = engine.last(layers[-1], mine, x, data, None, 1.0, None)
        engine.wait((dy, sums))
        for layer in reversed(layers[:-1]):
            mine = tuple(params[g] for g in layer.uses)
            dy, sums = engine.backward(layer, mine, inputs.pop(), data, None, None, dy, None)
            engine.wait((dy, sums))

    step()
    return [_seconds(step) for _ in range(repeats)]


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _timed(found: dict[str, float], name: str, work: Callable[..., Any], *arguments: Any) -> None:
    found[name] = _seconds(lambda: work(*arguments))


def _read(store: Any, specs: dict[str, Any]) -> None:
    params = [name for name in specs if name.split("/")[1] == "params"]
    together = [*_by_group(params), *_by_group(specs)]
    _wait([store.read_many(names) for names in together])


def _wait(reads: list[Any]) -> None:
    for future in reads:
        future.result().release()


def _write(store: Any, arrays: dict[str, np.ndarray]) -> None:
    futures = [store.write_many({n: arrays[n] for n in names}) for names in _by_group(arrays)]
    for future in futures:
        future.result()


def _by_group(names: Iterable[str]) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.split("/")[0], []).append(name)
    return list(found.values())
