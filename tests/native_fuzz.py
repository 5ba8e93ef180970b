"""Calls of every native entry with operands that fit, and with such that do not, in one process.

A handler may compute or refuse; the process must live. ``python -m tests.native_fuzz SEED COUNT``
prints how many calls of each entry were served and refused. For AddressSanitizer build the library
with ``CXX="g++ -fsanitize=address" python hatch_build.py``, load libasan and libstdc++ first, by
LD_PRELOAD, and name a library elsewhere in TENSORJAX_SWEEPS.
"""

import collections
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tensorjax import _native
from tensorjax._native import host_calls, loading

REFUSED = (ValueError, TypeError, MemoryError, OverflowError, jax.errors.JaxRuntimeError)
TYPES = ["float32", "float64", "int32", "int64", "complex64", "bfloat16", "bool", "uint8"]
SIZES = [0, 1, 2, 3, 7, 8, 9, 17]
ODD = [0, 1, -1, 2, 5, 1 << 14, 1 << 31, 1 << 40, -(1 << 62), (1 << 63) - 1]


class Call:
    """A call of a handler: arrays, results (shape, dtype), attributes."""

    def __init__(self, name: str, arrays: list[Any], results: list[Any], **attributes: Any):
        self.name, self.arrays, self.results = name, arrays, results
        self.attributes = attributes

    def run(self) -> None:
        """Calls, and waits for the results."""
        results = [jax.ShapeDtypeStruct(tuple(s), d) for s, d in self.results]
        out = jax.ffi.ffi_call(self.name, results)(*self.arrays, **self.attributes)
        jax.block_until_ready(out)


def normal(rng: np.random.Generator, shape: Any, dtype: Any) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def bonds(rng: np.random.Generator, order: int, most: int = 9) -> list[int]:
    most = most if rng.random() < 0.9 else 8 * most
    return [1, *rng.integers(1, most, order - 1).tolist(), 1]


def cores(rng: np.random.Generator, modes: list[int], ranks: list[int], dtype: Any) -> list[Any]:
    return [normal(rng, (ranks[k], n, ranks[k + 1]), dtype) for k, n in enumerate(modes)]


def lead(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(rng.choice([0, 1, 2, 3], rng.choice([0, 0, 1, 2])).tolist())


def batched(x: Any, axes: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(x, (*axes, *x.shape)).copy()


def a_rounding(rng: np.random.Generator) -> Call:
    order, dtype, axes = int(rng.integers(2, 6)), rng.choice(["float32", "float64"]), lead(rng)
    modes, ranks = rng.integers(1, 7, order).tolist(), bonds(rng, order)
    product, exact = rng.random() < 0.4, rng.random() < 0.3
    operands, whole, out = cores(rng, modes, ranks, dtype), list(ranks), modes
    matrices: list[Any] = []
    if product:
        exact, out, above = False, rng.integers(1, 5, order).tolist(), bonds(rng, order, 4)
        shapes = zip(above, out, modes, above[1:], strict=False)
        matrices = [normal(rng, shape, dtype) for shape in shapes]
        whole = [a * r for a, r in zip(above, ranks, strict=True)]
    kept, left = [1], 1
    for k in range(order - 1):
        kept.append(int(rng.integers(1, min(kept[-1] * out[k], whole[k + 1]) + 1)))
    kept.append(1)
    for k in reversed(range(1, order)):
        kept[k] = min(kept[k], kept[k + 1] * out[k])
    width = 0 if exact else max(kept) + int(rng.integers(0, 12))
    columns = []
    for k in range(order - 1):
        left = min(left * out[k], whole[k + 1], *([] if exact else [width]))
        columns.append(left)
    mix = np.linalg.qr(rng.standard_normal((width, width)))[0].astype(dtype)
    draw = normal(rng, (sum(out), width), dtype)
    arrays = [batched(x, axes) for x in (draw, mix, *matrices, *operands)]
    results = [((*axes, kept[k], n, kept[k + 1]), dtype) for k, n in enumerate(out)]
    ranks_, columns_ = np.asarray(kept[1:-1], np.int64), np.asarray(columns, np.int64)
    return Call("tensorjax_round", arrays, results, ranks=ranks_, columns=columns_)


def an_inner_product(rng: np.random.Generator) -> Call:
    order, axes = int(rng.integers(1, 6)), lead(rng)
    modes = rng.integers(1, 7, order).tolist()
    trains = [cores(rng, modes, bonds(rng, order, 18), float) for _ in range(rng.integers(1, 3))]
    arrays = [batched(c, axes) for t in trains for c in t]
    return Call(
        "tensorjax_inner", arrays, [(axes, "float64"), (axes, "int32")], order=np.int64(order)
    )


def an_entrywise_product(rng: np.random.Generator) -> Call:
    order, dtype, axes = int(rng.integers(1, 5)), rng.choice(["float32", "float64"]), lead(rng)
    modes = rng.integers(1, 7, order).tolist()
    x, y = (cores(rng, modes, bonds(rng, order), dtype) for _ in range(2))
    results = [
        ((*axes, a.shape[0] * b.shape[0], n, a.shape[2] * b.shape[2]), dtype)
        for a, b, n in zip(x, y, modes, strict=True)
    ]
    return Call("tensorjax_multiply", [batched(c, axes) for c in (*x, *y)], results)


def an_exact_product(rng: np.random.Generator) -> Call:
    order, dtype = int(rng.integers(1, 5)), rng.choice(["float32", "float64", "complex64"])
    m, n, k = rng.integers(1, 5, (3, order)).tolist()
    sums, four = rng.random() < 0.5, rng.random() < 0.5
    modes = list(zip(m, n, strict=True)) if sums or four else [(i,) for i in n]
    other = list(zip(n, k, strict=True)) if sums and four else [(i,) for i in n] if sums else modes
    x, y = (_train(rng, sizes, dtype) for sizes in (modes, other))
    results = []
    for a, b in zip(x, y, strict=True):
        middle = (a.shape[1], *b.shape[2:-1]) if sums else b.shape[1:-1]
        results.append(((a.shape[0] * b.shape[0], *middle, a.shape[-1] * b.shape[-1]), dtype))
    return Call("tensorjax_product", [*x, *y], results, sums=np.int64(sums))


def _train(rng: np.random.Generator, modes: Any, dtype: Any) -> list[np.ndarray]:
    ranks = bonds(rng, len(modes))
    shapes = [(r, *n, s) for r, n, s in zip(ranks, modes, ranks[1:], strict=False)]
    size = 10.0 ** rng.choice([0, 0, 30])
    return [(size * normal(rng, shape, dtype)).astype(dtype) for shape in shapes]


def an_overlap(rng: np.random.Generator) -> Call:
    kinds = ["float32", "float64", "complex64", "complex128"]
    order, dtype = int(rng.integers(1, 6)), rng.choice(kinds)
    modes = rng.integers(1, 7, order).tolist()
    trains = [cores(rng, modes, bonds(rng, order, 18), dtype) for _ in range(rng.integers(1, 3))]
    sizes = {"order": np.int64(order), "root": np.int64(len(trains) == 1)}
    result = np.finfo(dtype).dtype if len(trains) == 1 else dtype
    return Call("tensorjax_overlap", [c for t in trains for c in t], [((), result)], **sizes)


def a_sum(rng: np.random.Generator) -> Call:
    order, dtype, axes = int(rng.integers(2, 5)), rng.choice([*TYPES[:2], "complex64"]), lead(rng)
    modes = rng.integers(1, 7, order).tolist()
    x, y = (cores(rng, modes, bonds(rng, order), dtype) for _ in range(2))
    shapes = [
        (a.shape[0] + b.shape[0] * (k > 0), n, a.shape[2] + b.shape[2] * (k + 1 < order))
        for k, (a, b, n) in enumerate(zip(x, y, modes, strict=True))
    ]
    results = [((*axes, *shape), dtype) for shape in shapes] + [((*axes, 2 * order), "int32")]
    return Call("tensorjax_add", [batched(c, axes) for c in (*x, *y)], results)


def a_sketch(rng: np.random.Generator) -> Call:
    dtype, axes = rng.choice(["float32", "float64"]), lead(rng)
    batch, n, j, r, k = rng.integers(1, 9, 5).tolist()
    m = int(rng.integers(16, 70))
    shapes = (batch, n, m), (n, j, r), (r, m, k)
    arrays = [batched(normal(rng, shape, dtype), axes) for shape in shapes]
    return Call("tensorjax_sketch", arrays, [((*axes, batch, j, k), dtype)])


def a_lookup(rng: np.random.Generator, backward: bool | None = None) -> Call:
    order, dtype = int(rng.integers(2, 5)), rng.choice(["float32", "float64"])
    ranks, count = bonds(rng, order), int(rng.integers(0, 30))
    rows, columns = (rng.integers(1, 5, order).tolist() for _ in range(2))
    shapes = list(zip(ranks, rows, columns, ranks[1:], strict=False))
    operands = [normal(rng, shape, dtype) for shape in shapes]
    gates = [normal(rng, (r,), dtype) for r in ranks[1:-1]]
    ids = rng.integers(0, np.prod(rows) + 2, count).astype(np.int32)
    flow = ((count, int(rng.integers(1, np.prod(columns) + 1))), dtype)
    if not (rng.random() < 0.5 if backward is None else backward):
        return Call("tensorjax_lookup", [ids, *operands, *gates], [flow])
    arrays = [ids, *operands, *gates, normal(rng, *flow)]
    results = [(x.shape, dtype) for x in (*operands, *gates)]
    return Call("tensorjax_lookup_gradient", arrays, results)


def spoil(call: Call, rng: np.random.Generator) -> None:
    """Changes one thing about a call."""
    kind = rng.choice(["array", "array", "array", "list", "result", "attribute"])
    if kind == "attribute" and call.attributes:
        name = rng.choice(sorted(call.attributes))
        call.attributes[name] = odd_attribute(call.attributes[name], rng)
    elif kind == "list" or not call.arrays:
        which = call.arrays if rng.random() < 0.7 or not call.results else call.results
        place = int(rng.integers(0, max(1, len(which))))
        if rng.random() < 0.5 or not which:
            which.insert(place, normal(rng, (2,), float) if which is call.arrays else ((2,), float))
        else:
            del which[place]
    elif kind == "result" and call.results:
        place = int(rng.integers(len(call.results)))
        shape, dtype = call.results[place]
        if rng.random() < 0.3:
            dtype = rng.choice(TYPES)
        call.results[place] = odd_shape(shape, rng), dtype
    else:
        place = int(rng.integers(len(call.arrays)))
        call.arrays[place] = odd_array(call.arrays[place], rng)


def odd_attribute(value: Any, rng: np.random.Generator) -> Any:
    value = np.atleast_1d(np.array(value))
    pick = rng.integers(4)
    if pick == 0 and value.size:
        value[rng.integers(value.size)] = rng.choice(ODD)
    elif pick == 1:
        value = np.append(value, 1).astype(np.int64)
    elif pick == 2:
        value = value[:-1]
    else:
        value = value.astype(rng.choice(["int32", "float64"]))
    return np.int64(value[0]) if value.size == 1 and rng.random() < 0.5 else value


def odd_shape(shape: Any, rng: np.random.Generator) -> tuple[int, ...]:
    sizes = list(shape)
    pick = rng.integers(3)
    if pick == 0 or not sizes:
        sizes.insert(int(rng.integers(len(sizes) + 1)), int(rng.choice([1, 1, 2])))
    elif pick == 1:
        del sizes[rng.integers(len(sizes))]
    else:
        sizes[rng.integers(len(sizes))] = int(rng.choice(SIZES))
    return tuple(sizes)


def odd_array(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Another dtype, another shape, another order in memory, or numbers that are not finite."""
    pick = rng.integers(5)
    if pick == 0:
        with np.errstate(all="ignore"):
            return x.astype(np.dtype(jax.numpy.dtype(rng.choice(TYPES))))
    if pick == 1:
        return np.resize(x, odd_shape(x.shape, rng)) if x.size else x
    if pick == 2:
        return np.asfortranarray(x)[..., ::-1] if x.ndim else x
    if pick == 3 and x.dtype.kind == "f" and x.size:
        x = x.copy()
        with np.errstate(all="ignore"):
            x.flat[rng.integers(x.size)] = rng.choice([np.nan, np.inf, 0.0, 1e300, 1e-300])
        return x
    if pick == 4 and x.dtype == np.int32 and x.size:
        x = x.copy()
        x.flat[rng.integers(x.size)] = rng.choice([-1, 10**6, -(2**31), 2**31 - 1])
    return x


def on_the_host(rng: np.random.Generator) -> tuple[str, Callable[[], Any]]:
    """A plain call, with matrices and trains of which each may have something odd."""

    def some(shape: Any) -> Any:
        x = normal(rng, shape, float)
        for _ in range(rng.integers(0, 2)):
            x = odd_array(x, rng)
        return x[::-1] if rng.random() < 0.1 and x.ndim else x

    rows, columns, few = (int(n) for n in rng.integers(0, 40, 3))
    columns *= int(rng.choice([1, 100]))
    order = int(rng.integers(1, 5))
    modes, ranks = rng.integers(1, 6, order).tolist(), bonds(rng, order)
    a = some((rows, columns))
    with np.errstate(all="ignore"):
        g = a @ a.T if a.ndim == 2 and rng.random() < 0.7 else some((rows, rows))
    train = [some((ranks[k], n, ranks[k + 1])) for k, n in enumerate(modes)]
    share = float(rng.choice([1e-2, 1e-6, 0.0, -1.0, np.nan, np.inf]))
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("gram", lambda: _native.gram(a, bool(columns % 2))),
        ("project", lambda: _native.project(some((rows, few)), a)),
        ("pivoted_cholesky", lambda: _native.pivoted_cholesky(g, share)),
        ("gram_round", lambda: _native.gram_round(train, share, float(rng.choice([0.0, 64.0])))),
        ("tt_svd", lambda: _native.tt_svd(some(modes), share, 4e-15)),
        ("complex tt_svd", lambda: _native.tt_svd(_complex(some(modes), rng), share, 4e-15)),
        ("entries", lambda: _native.entries(train, some_indices(modes, rng))),
        ("raw", lambda: _raw(rng)),
    ]
    return calls[rng.integers(len(calls))]


def some_indices(modes: list[int], rng: np.random.Generator) -> np.ndarray:
    """Multi-indices of a train, some of them out of range, or for a train of another order."""
    few = int(rng.integers(0, 9))
    out = np.stack([rng.integers(-n, n, few) for n in modes], -1)
    if rng.random() < 0.3 and out.size:
        out.flat[rng.integers(out.size)] = rng.choice([6, -7, 1 << 40, -(1 << 63)])
    if rng.random() < 0.2:
        out = (out[:, :-1], out[::2], out.astype(np.int8), out.T)[rng.integers(4)]
    return out


def _complex(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same with an imaginary part, in single or double precision."""
    return (x + 1j * rng.permutation(x)).astype(rng.choice([np.complex64, np.complex128]))


def _raw(rng: np.random.Generator) -> None:
    """Counts that no array has: refused before anything is read."""
    x = np.zeros(4)
    n = [int(rng.choice([0, -1, -(1 << 62), 1 << 31, 1 << 40, (1 << 63) - 1])) for _ in range(3)]
    ints = np.array([1, n[1], 1], np.int64)
    calls: list[Any] = [
        ("tensorjax_wide_gram", n[0], n[1], 1 + n[2] % 2, n[2] % 2, n[2], n[1], x, x),
        ("tensorjax_project", n[0], n[1], n[2], x, x, x),
        ("tensorjax_factor", n[0], x, 0.0, x),
        ("tensorjax_gram_round", min(n[0], 2), ints, ints, ints, 1.0, 64.0, x),
        ("tensorjax_entries", min(n[0], 1), ints, ints, ints, 1, 0, n[1], ints, x),
        ("tensorjax_tt_svd", min(n[0], 1), ints, 1 + n[2] % 2, 0, x, 1.0, 0.0, ints, x),
        ("tensorjax_tt_svd", 2, np.ones(2, np.int64), n[0] % 7 - 9, 0, x, 1.0, 0.0, ints, x),
    ]
    host_calls.call(*calls[rng.integers(len(calls))])


ENTRIES = (
    a_rounding, an_inner_product, an_overlap, an_entrywise_product, an_exact_product, a_sum,
    a_sketch, a_lookup,
)  # fmt: skip


def main(seed: int, count: int) -> None:
    """Runs so many calls of handlers and as many on the host."""
    jax.config.update("jax_enable_x64", True)
    assert not _native.status(), _native.status()
    served: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        call = ENTRIES[i % len(ENTRIES)](rng)
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            spoil(call, rng)
        todo = [(call.name, call.run), on_the_host(rng)]
        for name, run in todo:
            try:
                with np.errstate(all="ignore"):
                    run()
                served[name] += 1
            except REFUSED:
                refused[name] += 1
    for name in sorted(served | refused):
        print(f"{name}: {served[name]} served, {refused[name]} refused")


if __name__ == "__main__":
    if "TENSORJAX_SWEEPS" in os.environ:
        from pathlib import Path

        loading._path = lambda _: Path(os.environ["TENSORJAX_SWEEPS"])
    main(int(sys.argv[1]), int(sys.argv[2]))
