"""Argument validation shared by all public functions, with uniform error messages.

Static faults (shapes, dtypes, ranks) raise at trace time. The contents of an array are
looked at only when it is concrete, so these checks cost nothing under `jax.jit`.
"""

import functools
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

_NO_TREES = (float, int, np.ndarray)  # which need not be flattened


def is_traced(*trees: Any) -> bool:
    """Whether an argument holds a JAX tracer (jit, vmap, grad), so that no entry can be checked."""
    if len(trees) == 1 and isinstance(trees[0], _NO_TREES):
        return False
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def _on_host(name: str, x: Any) -> np.ndarray:
    try:
        return np.asarray(x)
    except (RuntimeError, TypeError, ValueError) as error:
        if hasattr(x, "detach"):  # of PyTorch: with gradients, on a device, lazily conjugated
            advice = "pass x.detach().resolve_conj().cpu().numpy()"
            raise TypeError(
                f"{name}: expected an array that NumPy can read, got a {type(x).__name__} of "
                f"{type(x).__module__} ({error}); {advice}"
            ) from error
        if isinstance(error, TypeError):
            raise TypeError(f"{name}: {error}") from error
        raise


def inexact(name: str, x: Any, *, stays: bool = False) -> jax.Array | np.ndarray:
    """Returns an argument as a floating or complex array; raises TypeError for other dtypes.

    Raises ValueError for 64-bit NumPy data out of the range of the 32 bits that JAX makes of them,
    unless ``stays`` says that they keep their dtype.
    """
    array = x if isinstance(x, jax.Array | np.ndarray) else _on_host(name, x)
    if type(array) is not np.ndarray and isinstance(array, np.ndarray):
        unmasked(name, array)
        array = np.asarray(array)  # of other subclasses, as np.matrix, operators differ
    if array.dtype.type in (np.longdouble, np.clongdouble):
        raise TypeError(
            f"{name}: expected a floating-point or complex array that JAX can hold, got dtype "
            f"{array.dtype}; convert it first, for example with .astype(np.float64)"
        )
    if isinstance(array, np.ndarray) and not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        raise TypeError(
            f"{name}: expected a floating-point or complex array, got dtype {array.dtype}; "
            + _remedy(array.dtype)
        )
    if not stays:
        representable(name, array)
    return array


def unmasked(name: str, x: Any) -> None:
    """Raises TypeError for a NumPy array with masked entries, which would count as data."""
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise TypeError(
            f"{name}: expected an array without masked entries, got {int(np.sum(x.mask))} of "
            f"{x.size}; pass x.filled(0.0), or fit those that are known by tt.complete or "
            "tucker.hooi(mask=)"
        )


def representable(name: str, x: Any, dtype: Any = None) -> None:
    """Raises ValueError if a NumPy array is out of the range of a narrower dtype it is cast to.

    By default that is JAX's own, of 32 bits while jax_enable_x64 is off, where an overflow would
    give Inf, an underflow zeros, and an integer another one. NaN and Inf pass, and so does what a
    given dtype holds exactly in subnormal numbers that no program flushes to zero.
    """
    if not isinstance(x, np.ndarray | np.generic) or x.dtype.kind not in "fciu" or not x.size:
        return
    kind = np.dtype(jax.dtypes.canonicalize_dtype(x.dtype) if dtype is None else dtype)
    whole = x.dtype.kind in "iu"
    if whole and kind.kind not in "iu":
        x, whole = x.astype(np.float64), False
    if _bits(kind) >= _bits(x.dtype):
        return
    parts = [x.real, x.imag] if x.dtype.kind == "c" else [x]
    if whole:
        limits: Any = np.iinfo(kind)
        low, high = int(x.min()), int(x.max())
        fits = limits.min <= low and high <= limits.max
        size: Any = high if high > limits.max else low
    else:
        limits = jnp.finfo(kind)
        size = max(float(max(p.max(), -p.min())) for p in parts)
        fits = not float(limits.max) < size < math.inf
        tiny = 0 < size < float(limits.smallest_normal)
        fits &= not tiny or (dtype is not None and bool(held_subnormal(kind, np.asarray(x)).all()))
    if not fits:
        got = f"{size:.3g}" if isinstance(size, float) else size
        raise ValueError(
            f"{name}: expected numbers that {kind} holds, got {got} of {x.dtype}; scale them first"
            + (
                ", or call jax.config.update('jax_enable_x64', True)"
                if dtype is None
                else ", or take a wider dtype"
            )
        )


def _bits(dtype: Any) -> int:
    """Returns the bits of each part of a floating or complex dtype; the bytes of an integer."""
    return dtype.itemsize if dtype.kind in "iu" else int(jnp.finfo(dtype).bits)


def held_subnormal(dtype: Any, x: np.ndarray) -> np.ndarray:
    """Whether a dtype holds each entry of an array exactly, and subnormal ones in programs too.

    XLA computes with float16 in single precision on CPUs, where its subnormal numbers are normal;
    those of wider dtypes, and of bfloat16, it flushes to zero.
    """
    if not keeps_subnormal(dtype):
        return np.zeros(x.shape, bool)
    return np.asarray(x.astype(dtype).astype(x.dtype) == x)


@functools.cache
def keeps_subnormal(dtype: Any) -> bool:
    """Whether the subnormal numbers of a dtype are normal in single precision."""
    info = jnp.finfo(dtype)
    return float(info.smallest_subnormal) >= float(jnp.finfo(np.float32).smallest_normal)


def _remedy(dtype: Any) -> str:
    """Returns the advice in an argument's error how to convert an array to a floating dtype."""
    if dtype == np.dtype("V2"):
        return "numpy.savez does not keep the name of bfloat16: read it with .view(jnp.bfloat16)"
    if dtype.kind == "O":
        return "give an array of numbers (of a sparse matrix, x.toarray())"
    return "convert it first, for example with .astype(float)"


def core(name: str, x: Any) -> Any:
    """Checks an argument that is to be a tensor's core: returns an array, or raises TypeError.

    A `jax.ShapeDtypeStruct` is one, and stays: formats of them are what checkpoints are read into.
    """
    if isinstance(x, jax.ShapeDtypeStruct) and jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    array = inexact(name, x)
    available(name, array.dtype)
    if isinstance(array, jax.Array) or not jax.sharding.get_abstract_mesh().empty:
        return jnp.asarray(array)
    # Which would compile a program for every new shape of NumPy's; a transfer shares the memory.
    return jax.device_put(np.array(array))


class Unavailable(TypeError, ValueError):
    """Exception for arguments with 64-bit arrays while jax_enable_x64 is off."""


_NARROW = {np.dtype(np.float64): "float32", np.dtype(np.complex128): "complex64"}


def held(name: str, tree: Any, *, host: bool = False) -> None:
    """Raises `Unavailable` if an argument holds 64-bit JAX arrays while jax_enable_x64 is off.

    Some operations of JAX would round them to single precision there, and others fail. Dense data,
    out of which a format is made, JAX rounds by its own rule: those are not concerned. Arrays of
    NumPy are where ``host`` says so: functions that stay on the host take them in any dtype.
    """
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return
    for leaf in jax.tree.leaves(tree):
        if (host or not isinstance(leaf, np.ndarray)) and getattr(leaf, "dtype", None) in _NARROW:
            available(name, leaf.dtype)


def is_enabled(dtype: Any) -> bool:
    """Whether JAX has a dtype enabled: one of 64 bits needs jax_enable_x64."""
    return jax.config.jax_enable_x64 or dtype not in _NARROW  # type: ignore[attr-defined]


def available(name: str, dtype: Any) -> None:
    """Checks that JAX has a dtype enabled: raises `Unavailable` for 64 bits without x64."""
    if is_enabled(dtype):
        return
    raise Unavailable(
        f"{name}: expected a dtype that JAX has enabled, got {dtype} while jax_enable_x64 is off; "
        "call jax.config.update('jax_enable_x64', True) first, or cast to "
        f"{_NARROW[dtype]}, for example with .astype(np.{_NARROW[dtype]})"
    )


def dtype_of(name: str, value: Any) -> np.dtype:
    """Converts an argument that names a dtype to it; raises TypeError if it names none."""
    try:
        # Sequences would make structured dtypes, and of an array JAX would take its own.
        refused = (list, tuple, dict, np.ndarray, jax.Array)
        if value is not None and not isinstance(value, refused):
            return jnp.dtype(value)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name}: expected a dtype such as jnp.float32, got {short(value)}") from None


def inexact_dtype(dtype: Any) -> Any:
    """Returns a floating or complex dtype argument, or JAX's default for None; else raises."""
    if dtype is None or dtype is float or dtype is complex:  # JAX's default ones
        return jnp.result_type(float if dtype is None else dtype)
    out = dtype_of("dtype", dtype)
    if not jnp.issubdtype(out, jnp.inexact):
        raise TypeError(f"dtype: expected a floating-point or complex dtype, got {out}")
    available("dtype", out)
    return out


def finite(name: str, tree: Any) -> None:
    """Raises ValueError if an argument has NaN or infinite entries; traced arrays pass."""
    for leaf in jax.tree.leaves(tree):
        if not isinstance(leaf, Tracer) and not _all_finite(np.asarray(leaf)):
            raise ValueError(
                f"{name}: expected finite numbers, got NaN or Inf; "
                "find them with jnp.argwhere(~jnp.isfinite(x)) and clean the data first"
            )


def _all_finite(x: np.ndarray) -> bool:
    if x.dtype.kind not in "fc":  # bfloat16 and the like, which NumPy cannot reduce
        x = x.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        # A finite sum means finite entries, at one pass and no temporary. An infinite one may
        # also be overflow, so only then look entry by entry.
        return bool(np.isfinite(np.sum(x)) or np.all(np.isfinite(x)))


def shape(name: str, value: Any, *, low: int = 1) -> tuple[int, ...]:
    """Checks a shape argument: returns a non-empty tuple of positive ints, or raises ValueError."""
    single = isinstance(value, numbers.Integral)
    dims = (value,) if single else tuple(several(name, value, "mode sizes"))
    if not dims or any(not isinstance(n, numbers.Integral) or n < low for n in dims):
        sizes = "positive mode sizes" if low else "mode sizes that are not negative"
        empty = low and any(isinstance(n, numbers.Integral) and n == 0 for n in dims)
        why = "; a tensor with a mode of size 0 has no entries" if empty else ""
        raise ValueError(f"{name}: expected one or more {sizes}, got {value!r}{why}")
    return tuple(int(n) for n in dims)


def short(value: Any) -> str:
    """Describes an argument for an error message: as Python has it, or by type, dtype, shape."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"a {type(value).__name__} {value.dtype}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def function(name: str, value: Any) -> Any:
    """Returns a function argument; raises TypeError if it cannot be called."""
    if not callable(value):
        raise TypeError(f"{name}: expected a function, got {short(value)}")
    return value


def mapping(name: str, value: Any, of: str) -> Mapping[Any, Any]:
    """Returns a dict argument; raises TypeError, whose message says ``of`` what, for others."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: expected a dict of {of}, got {short(value)}")
    return value


def several(name: str, value: Any, of: str) -> list[Any]:
    """Checks a sequence argument with items ``of`` a kind; returns a list, or raises TypeError."""
    if not isinstance(value, str | bytes | Mapping):
        try:
            return list(value)
        except TypeError:
            pass
    raise TypeError(f"{name}: expected a sequence of {of}, got {short(value)}")


def choice(name: str, value: Any, known: Iterable[Any]) -> Any:
    """Returns an argument if it is one of several choices; else raises ValueError."""
    options = tuple(known)
    # Not by `in`, which asks arrays whether they are equal to it.
    if not any(value is o or (isinstance(value, str) and value == o) for o in options):
        raise ValueError(f"{name}: expected one of {options}, got {short(value)}")
    return value


def flag(name: str, value: Any) -> bool:
    """Converts an argument to bool; raises TypeError unless it is True or False (or an int)."""
    if not isinstance(value, bool | np.bool_ | int):
        raise TypeError(f"{name}: expected True or False, got {short(value)}")
    return bool(value)


def number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open: bool = False,
    finite: bool = True,
) -> float:
    """Checks a real scalar argument: returns a float; raises an error outside of [low, high).

    With ``open``, (low, high).

    TypeError for what is no number, ValueError for one outside, NaN, and infinity if ``finite``.
    """
    try:
        if isinstance(value, str | bytes) or np.ndim(value) or is_traced(value):
            raise TypeError
        out = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected a number, got {short(value)}") from None
    above = low < out if open else low <= out
    if not above or not (out < high or (out == high and not finite)):
        bounds = f" in {'(' if open or low == -math.inf else '['}{low:g}, {high:g})"
        kind = "a positive number" if (low, high, open) == (0, math.inf, True) else "a number"
        within = bounds if kind == "a number" and (low, high) != (-math.inf, math.inf) else ""
        raise ValueError(f"{name}: expected {kind}{within}, got {value!r}")
    return out


def points(name: str, value: Any) -> np.ndarray:
    """Checks an argument of concrete real points; returns float64, or raises TypeError."""
    try:
        if np.asarray(value).dtype.kind in "biuf":
            return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name}: expected an array of real numbers, got {short(value)}")


def scalar(name: str, value: Any) -> None:
    """Checks an argument: raises TypeError unless it is one number, real or complex."""
    kinds = numbers.Number | np.generic | np.ndarray | jax.Array
    if (
        not isinstance(value, kinds)
        or np.ndim(value)
        or not (isinstance(value, numbers.Number) or jnp.issubdtype(value.dtype, jnp.number))
    ):
        raise TypeError(f"{name}: expected a number, got {short(value)}")


def key(value: Any, name: str = "key") -> Any:
    """Returns a random key argument, which may be traced; raises TypeError for others."""
    dtype = getattr(value, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    legacy = dtype == np.uint32 and np.shape(value)[-1:] == (2,)  # of jax.random.PRNGKey
    if not typed and not legacy:
        raise TypeError(f"{name}: expected a jax.random.key(seed), got {short(value)}")
    if np.shape(value) != (() if typed else (2,)):
        raise ValueError(
            f"{name}: expected one key, got a batch of shape {np.shape(value)}; "
            "map the function over it with jax.vmap"
        )
    return value


def seed(value: Any) -> Any:
    """Checks a key argument that has to be concrete; returns a seed for NumPy, 0 for None."""
    if value is None:
        return 0
    if is_traced(key(value, "key")):
        raise TypeError("key: expected a concrete jax.random.key(seed), got a traced one")
    return np.asarray(jax.random.key_data(value)).ravel()


def integer(name: str, value: Any, *, low: int, high: int | None = None) -> int:
    """Returns an integer argument as int; raises ValueError unless it is in [low, high]."""
    expected = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    number: Any = value
    is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_int or number < low or (high is not None and number > high):
        raise ValueError(f"{name}: expected {expected}, got {value!r}")
    return int(number)


def bond_ranks(
    rank: int | Sequence[int],
    bounds: Sequence[int],
    *,
    name: str = "rank",
    place: str = "interior bond",
) -> tuple[int, ...]:
    """Checks a public function's ``rank`` argument; returns ranks in bounds.

    Or per mode, for formats without bonds. Other arguments are a ValueError.

    Args:
      rank: one int for all bonds, or one per interior bond.
      bounds: the largest rank that each interior bond can need.
      place: what there is one rank for each of.
    """
    if isinstance(rank, numbers.Integral) and not isinstance(rank, bool):
        return tuple(min(integer(name, rank, low=1), b) for b in bounds)
    try:
        ranks = [integer(name, r, low=1) for r in rank]  # type: ignore[union-attr]
    except TypeError:
        raise ValueError(f"{name}: expected an int or one int per {place}, got {rank!r}") from None
    if len(ranks) != len(bounds):
        raise ValueError(
            f"{name}: expected one int or {len(bounds)} of them (one per {place}), "
            f"got {len(ranks)}: {tuple(ranks)}"
        )
    return tuple(min(r, b) for r, b in zip(ranks, bounds, strict=True))


def host_generator(key: Any, advice: str = "") -> np.random.Generator:
    """Checks a key argument that has to be concrete; returns a NumPy generator seeded by it."""
    if key is None or is_traced(key):
        got = type(key).__name__
        raise TypeError(f"key: expected a concrete jax.random.key(seed), got {got}{advice}")
    return np.random.default_rng(seed(key))


def mode_matrix(matrix: Any, mode: Any, shape: Sequence[int], dtype: Any) -> tuple[int, Any, Any]:
    """Validates the arguments of `mode_product`; returns mode, matrix (m, n_k) and dtype."""
    k = integer("mode", mode, low=-len(shape), high=len(shape) - 1) % len(shape)
    w = inexact("matrix", matrix)
    if w.ndim != 2 or w.shape[1] != shape[k]:
        raise ValueError(f"matrix: expected shape (m, {shape[k]}), got {w.shape}")
    dtype = jnp.promote_types(dtype, jax.dtypes.canonicalize_dtype(w.dtype))
    return k, jnp.asarray(w, dtype), dtype


def indices(value: Any, shape: Sequence[int]) -> jax.Array | np.ndarray:
    """Checks the argument ``indices`` (…, d): returns an integer array; raises if out of range.

    A JAX array is returned as it is, and all else as a NumPy array.
    """
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.dtype.kind not in "iu" and not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"indices: expected integers, got dtype {array.dtype}")
    if array.ndim == 0 or array.shape[-1] != len(shape):
        raise ValueError(f"indices: expected shape (…, {len(shape)}), got {array.shape}")
    if not is_traced(array) and array.size:
        host = np.asarray(array).reshape(-1, len(shape))
        least = min(shape)
        if host.min() >= -least and host.max() < least:  # few entries take less time than to ask
            return array
        sizes = np.asarray(shape)
        outside = (host.min(0) < -sizes) | (host.max(0) >= sizes)
        if outside.any():
            mode = int(np.argmax(outside))
            raise ValueError(
                f"indices: expected mode {mode} in [-{shape[mode]}, {shape[mode]}), "
                f"got values from {host[:, mode].min()} to {host[:, mode].max()}"
            )
    return array


def tolerance(tol: Any, dtype: Any) -> Any:
    """Returns a relative tolerance; raises ValueError below 10 eps of the dtype."""
    if is_traced(tol):
        return tol
    eps = _epsilon(dtype)
    value = tol if type(tol) is float else number("tol", tol)
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"tol: expected a positive relative error, got {tol!r}")
    if value < 10 * eps:
        raise ValueError(
            f"tol: expected at least 10 eps = {10 * eps:.2g} of {jnp.dtype(dtype).name}, "
            f"got {value:.2g}; ask for less accuracy, or use a wider dtype "
            "(float64 needs jax.config.update('jax_enable_x64', True))"
        )
    return value


@functools.cache
def _epsilon(dtype: Any) -> float:
    return float(jnp.finfo(dtype).eps)


def tol_or_rank(tol: Any, rank: Any, *arrays: Any) -> None:
    """Checks that ``tol`` or ``rank`` is given; traced data need ``rank``."""
    if tol is None and rank is None:
        raise ValueError(
            "expected tol= (relative error), rank= (static ranks), or both; got neither"
        )
    if rank is None and is_traced(tol, *arrays):
        raise TypeError(
            "tol= alone makes the ranks depend on the data, which jit, vmap and grad cannot trace; "
            "pass rank= too (shapes are then those of rank, and what tol discards is set to zero), "
            "or call this outside the transformation"
        )
