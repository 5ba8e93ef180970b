"""Part "contract" of `bench/device`: every public function on the device and on the CPU.

The calls are those of the tests: `tests.placement_cases` has one of every public function, run as
users call it, in double precision (layers in single), and `tests.contract_cases` those with static
shapes, run as jit(vmap(value_and_grad)) in double precision and under jit in single and half. Both
backends are in this process and get the same arguments. Most of the time goes into compiling, which
several threads do at once.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.device.rows import Budget, Case, Emit, run_case
from tensorjax import mera, tt, tucker

# Relative differences that count as none, by the coarser dtype of the arguments or of the result:
# single precision is multiplied in TF32 on GPUs unless more is asked for, half in steps of 2^-8.
TOLERANCES = {"float64": 1e-9, "complex128": 1e-9, "float32": 5e-3, "complex64": 5e-3,
              "bfloat16": 0.1}  # fmt: skip
# What a tolerance asks for is met by other bits, of other sketches: the trains differ by as much.
_LOOSE = 1e-5
_DENSE: dict[type, Callable[[Any], Any]] = {
    tt.TT: tt.to_dense, tt.TTMatrix: tt.to_dense, tucker.Tucker: tucker.to_dense,
    mera.MERA: mera.to_dense,
}  # fmt: skip
_TINY = 6  # cases
_COMPILES = 2.0  # seconds that a case takes: the last ones would not end in time


def run(budget: Budget, emit: Emit) -> None:
    """Compares all public functions between device and CPU, in several threads."""
    jax.config.update("jax_enable_x64", True)
    with jax.default_device(jax.devices("cpu")[0]):  # also what these modules make when imported
        found = [*public(), *static("value and gradient", jnp.float64),
                 *static("value", jnp.float32), *static("value", jnp.bfloat16)]  # fmt: skip
    if budget.tiny:
        found = found[:: max(1, len(found) // _TINY)]
    counts: dict[str, int] = {"yes": 0, "no": 0}
    lock = threading.Lock()

    def one(name: str, find: Callable[[], Mapping[str, Any]]) -> None:
        def counted() -> Mapping[str, Any]:
            row = find()
            with lock:
                counts[row["same"]] += 1
            return row

        # By itself: how long the longest of the others took to compile says nothing.
        run_case(name, counted, Budget(budget.left() - _COMPILES), emit)

    # The order is not random: what there is no time for is the same every time.
    pool = ThreadPoolExecutor(min(12, os.cpu_count() or 1))
    begun = {name: pool.submit(one, name, find) for name, find in found}
    wait(begun.values(), timeout=max(budget.left(), 0.0))
    pool.shutdown(wait=False, cancel_futures=True)
    for name, future in begun.items():
        if future.cancelled() or not future.done():
            emit.left_out(name, "out of time")
    unknown = len(found) - sum(counts.values())
    emit("summary", same=counts["yes"], different=counts["no"], unknown=unknown)


def public() -> Iterator[Case]:
    """Yields cases: one call of every public function, without jit."""
    from tests.placement_cases import CASES

    for module, cases in CASES.items():
        for name, case in cases.items():
            full = f"{module.__name__.rpartition('.')[2]}.{name}"
            yield full, lambda case=case: compared(replayed(case))


def replayed(case: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function that calls a case on a device, with arguments made on the CPU."""
    given: list[Any] = []

    def kept(tree: Any) -> Any:
        given.append(tree)
        return tree

    def call(device: Any) -> Any:
        if not given:
            return case(kept)  # the first call is the CPU's
        left = iter(given)
        return case(lambda _: jax.device_put(next(left), device))

    return call


def static(what: str, dtype: Any) -> Iterator[Case]:
    """Yields cases: functions with static shapes, compiled, in one dtype."""
    from tests import contract_cases as table

    for name, row in table.TABLE.items():
        rng = np.random.default_rng(0)
        made = [table.operands(rng, "ordinary", dtype) for _ in range(2)]

        def call(device: Any, row: Any = row, made: Any = made) -> Any:
            if what == "value":
                one = jax.device_put(made[0], device)
                return jax.jit(lambda o: table.as_array(row.call(o), jnp))(one)

            def loss(o: Any) -> Any:
                return table.weighted(table.as_array(row.call(o), jnp), jnp)

            two = jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)
            placed = jax.device_put(two, device)
            # Cores of a gradient stand for no tensor: they are compared as they are.
            return jax.tree.leaves(jax.jit(jax.vmap(jax.value_and_grad(loss)))(placed))

        full = f"{name}: {what}, {jnp.dtype(dtype).name}"
        yield full, lambda call=call: compared(call)


def compared(call: Callable[[Any], Any]) -> dict[str, Any]:
    """Computes the largest relative difference of a call's results on device and CPU."""
    device, host = jax.devices()[0], jax.devices("cpu")[0]
    with jax.default_device(host), jax.numpy_dtype_promotion("standard"):
        expected, dtype = values(call(host), host)
        result = call(device)
        left = {d for x in jax.tree.leaves(result) if isinstance(x, jax.Array) for d in x.devices()}
        found, _ = values(result, host)
    if [x.shape for x in found] != [x.shape for x in expected]:
        shapes = ([x.shape for x in y] for y in (found, expected))
        return {"same": "no", "note": "shapes {} and {}".format(*shapes)}
    error = difference(found, expected)
    tolerance = TOLERANCES.get(dtype, TOLERANCES["float32"])
    same = error <= tolerance
    note = "" if same or error > _LOOSE else "within 1e-5: a rank or a sketch fell out otherwise"
    elsewhere = sorted(str(d) for d in left - {device})
    if elsewhere:
        note = "; ".join(filter(None, [note, f"results on {', '.join(elsewhere)}"]))
    return {"same": "yes" if same else "no", "error": error, "dtype": dtype, "note": note}


def difference(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Computes the largest difference of arrays, relative to the largest entry.

    Infinite where only one of both is finite.
    """
    largest = 0.0
    for a, b in zip(found, expected, strict=True):
        finite = np.isfinite(b)
        if not np.array_equal(np.isfinite(a), finite):
            return float("inf")
        with np.errstate(invalid="ignore"):
            largest = max(largest, np.abs(np.where(finite, a - b, 0)).max(initial=0))
    scale = max((np.abs(b[np.isfinite(b)]).max(initial=0) for b in expected), default=0)
    return float(largest / scale) if scale > 0 else float(largest)


def values(tree: Any, host: Any) -> tuple[list[np.ndarray], str]:
    """Converts results to dense arrays, free of gauge; also returns their coarsest dtype."""
    moved = jax.tree.map(lambda x: jax.device_put(x, host) if isinstance(x, jax.Array) else x, tree)
    leaves = jax.tree.leaves(moved, is_leaf=lambda x: type(x) in _DENSE)
    plain = [np.asarray(_DENSE.get(type(x), lambda x: x)(x)) for x in leaves if not _is_key(x)]
    floats = [x.dtype for x in plain if jnp.issubdtype(x.dtype, jnp.inexact)]
    coarsest = max(floats, key=lambda d: float(jnp.finfo(d).eps), default=np.dtype(float))
    return [x.astype(complex) for x in plain], coarsest.name


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
