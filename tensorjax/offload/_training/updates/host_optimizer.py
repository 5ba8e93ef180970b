"""Optax transformation compiled for the host's CPU, with results in recycled memory."""

import ctypes
import functools
import math
import re
from collections.abc import Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from tensorjax import linalg
from tensorjax._optax import check_optimizer
from tensorjax.offload._training.storage.arrays import cpu, finite, to_host
from tensorjax.offload._training.updates.labelled_transformations import Named, alike, kind, named
from tensorjax.offload._training.weak_cache import WeakCache

Into = Literal["place", "gradient", "spare"]

_ROW = 512  # entries that are added up in their own precision; sums of rows are in double
_PART = 1 << 18  # bytes that are widened at once
_LEAST = float(np.finfo(np.float32).tiny)  # below it, a factor in single precision loses digits


class HostOptimizer:
    """Optimiser on the host CPU that updates the parameters of one parameter group at a time.

    The same program updates parameters from memory and from a store, so that results do not depend
    on the storage; it is compiled for each kind of memory that results are written to. On a CPU
    fresh memory would cost more than the arithmetic. So results overwrite what they replace
    ("place"). Where that is a view of a staging buffer, which must not change, new parameters
    overwrite the gradient, and the new state a state that is not needed any more ("gradient").
    Where gradients are lent, both overwrite arrays of an earlier update ("spare").

    Args:
      transformation: of Optax's form, ``init(params)`` and ``update(gradients, state, params)``. It
        is applied to each group by itself: what looks at all parameters at once, such as clipping
        by a global norm, belongs to the trainer.
      compute_dtype: that floating parameters are cast to for the device; None leaves them.
    """

    def __init__(self, transformation: Any, compute_dtype: Any = None) -> None:
        check_optimizer("optimizer", transformation)
        self._transformation = transformation
        self._dtype = None if compute_dtype is None else _floating(compute_dtype)
        self.device = cpu()
        self._state: Any = None  # the structure of that of a group by its name
        # Of groups by their names, the first ones of all programs, by kinds of parameters.
        self._kin: dict[Any, list[HostOptimizer]] = {}
        self._first: HostOptimizer = self

    def named(self, name: str, params: Any) -> "HostOptimizer":
        """Returns the host optimiser of a named parameter group: itself if labels ignore the name.

        Groups for which the name makes the same difference share programs.
        """
        found = named(self._transformation, name, params)
        if found is self._transformation:
            return self
        made = HostOptimizer(found, self._dtype)
        others = self._kin.setdefault(kind(params), [])
        for kin in others:
            if alike(kin._transformation, found, params):
                made._first = kin
                return made
        others.append(made)
        return made

    @property
    def program(self) -> int:
        """Identifier of compiled optimiser programs, equal for host optimisers that share them."""
        return id(self._first)

    @functools.cached_property
    def _programs(self) -> tuple[Any, dict[Into, Any], Any]:
        return _programs(self._first._transformation, self._dtype)

    @property
    def casts(self) -> bool:
        """Whether the host optimiser's parameters are of another dtype than the device's."""
        return self._dtype is not None

    def init(self, params: Any) -> Any:
        """Computes the initial state of a parameter group by the host optimiser."""
        return self._named(self._programs[0](to_host(params)))

    def cast(self, params: Any) -> Any:
        """Casts parameters by the host optimiser to the dtype in which the device computes."""
        return self._programs[2](params)

    def shapes(self, params: Any) -> tuple[Any, Any]:
        """Returns the shapes and dtypes of the host optimiser's state and of device parameters."""
        try:
            state = jax.eval_shape(self._transformation.init, params)
            with jax.numpy_dtype_promotion("standard"):
                jax.eval_shape(self._transformation.update, params, state, params)
        except Exception as error:
            found = _needs_more(error)
            (found or error).add_note(
                "optimizer: it is given one group of parameters at a time, by its name or without, "
                "and gradients, state and parameters alone: none that needs the loss, or a search "
                "along a line; labels and masks have to be functions of the parameters"
            )
            if found is not None:
                raise found from error
            raise
        if isinstance(self._transformation, Named):
            self._state = jax.tree.structure(state)
        return state, jax.eval_shape(self._programs[2], params)

    def update(
        self, params: Any, state: Any, gradient: Any, scale: Any, spare: Any = None, *, into: Into
    ) -> Any:
        """Computes by the host optimiser a group's new parameters and optimiser state.

        Args:
          params, state: of one group.
          gradient: of it, of the dtypes of the parameters.
          scale: what the gradient is multiplied by, at most 1 and in single precision at least, or
            None.
          spare: what may be overwritten besides, or None.
          into: what results are written to: with "place" to parameters and state, with "gradient"
            to it and to ``spare``, a state; with "spare" to that, parameters and a state. These are
            used up.
        """
        if into == "gradient" and spare is None:
            spare = jax.tree.map(lambda x: jnp.empty(x.shape, x.dtype, device=self.device), state)
        state = self._first._named(state)
        scale = None if scale is None else _factors(float(scale))
        if into == "gradient":
            spare = self._first._named(spare)
        elif spare is not None:
            spare = (spare[0], self._first._named(spare[1]))  # the first may be None
        params, state = self._programs[1][into](params, state, gradient, scale, spare)
        return jax.block_until_ready((params, self._named(state)))

    def _named(self, state: Any) -> Any:
        """Restructures the host optimiser's state of another group with this group's names."""
        if self._state is None:
            return state
        return jax.tree.unflatten(self._state, jax.tree.leaves(state))

    def add(self, sums: Any, gradient: Any, *, lent: bool = False) -> Any:
        """Adds gradients by the host optimiser, in the first's memory if writable, not ``lent``."""
        return (_sum if lent else _add)(sums, gradient)

    def squares(self, gradient: Any) -> float:
        """Computes a gradient's sum of squares by the host optimiser, in one pass.

        Not finite if one of them is not, or is too large for its square.
        """
        return sum(map(_squares, jax.tree.leaves(gradient)), 0.0)

    def norm(self, gradient: Any) -> float:
        """Computes a gradient's Euclidean norm by the host optimiser, in one pass if squares fit.

        Where squares overflow or underflow, entries are divided by a power of two in two more
        passes. Not finite if an entry is not, or if the norm is beyond double precision.
        """
        return math.hypot(*map(_norm, jax.tree.leaves(gradient)))

    def sound(self, params: Any) -> bool:
        """Whether all new parameters that the host optimiser computed are finite."""
        real = [x for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating)]
        return bool(np.isfinite(self.squares(real)) or finite(real))


# What Python says of a call without keyword-only arguments, which the function has no defaults for.
_MISSING = re.compile(r"(?P<function>[\w.<>]+)\(\) missing \d+ required keyword-only arguments?: ")


def _needs_more(error: Exception) -> TypeError | None:
    """Converts a host optimiser's error for want of more than gradients to TypeError, or None."""
    found = _MISSING.search(str(error)) if isinstance(error, TypeError) else None
    if found is None:
        return None
    name = found["function"].partition(".")[0]
    names = ", ".join(f"{n}=" for n in re.findall(r"'(\w+)'", str(error)[found.end() :]))
    return TypeError(
        "optimizer: expected one that updates from gradients, state and parameters alone, for a "
        f"trainer updates each group as soon as its gradient is known; got {name}, or a "
        f"chain that contains it, whose update also needs {names}. Choose a fixed or scheduled "
        "step size, as optax.sgd(0.1) or optax.adamw(optax.cosine_decay_schedule(…)), and adapt it "
        "to losses between runs"
    )


def _floating(compute_dtype: Any) -> Any:
    try:
        found = jnp.dtype(compute_dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise TypeError(
            "compute_dtype: expected a floating dtype such as jnp.bfloat16, or None, got "
            f"{compute_dtype!r}"
        )
    return found


def _compiled(transformation: Any, dtype: Any) -> tuple[Any, dict[Into, Any], Any]:
    """Compiles an Optax transformation's init, update and cast for the host CPU."""

    def init(params: Any) -> Any:
        return jax.lax.optimization_barrier(transformation.init(params))

    def update(params: Any, state: Any, gradient: Any, scale: Any, spare: Any) -> Any:
        del spare
        if scale is not None:
            gradient = jax.tree.map(lambda g: _scaled(g, scale), gradient)
        # Optax multiplies numbers by counts; modes of JAX do not reach the thread we are in anyway.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = transformation.update(gradient, state, params)
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)
        # Without the barrier, state that is passed on unchanged would be returned as what came in:
        # a view of a staging buffer, which is about to be used for something else.
        return jax.lax.optimization_barrier((params, state))

    def cast(x: Any) -> Any:
        wanted = dtype is not None and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(dtype) if wanted else x

    # Said, for else there is one program for views of NumPy and one for what was computed here, and
    # what does not depend on the parameters' numbers would be made on an accelerator.
    host = SingleDeviceSharding(cpu())
    jit = functools.partial(jax.jit, in_shardings=host, out_shardings=host)
    return (
        jit(init),
        {
            "place": jit(update, donate_argnums=(0, 1)),
            "gradient": jit(update, donate_argnums=(2, 4), keep_unused=True),
            "spare": jit(update, donate_argnums=(4,), keep_unused=True),
        },
        # By itself: a cast in the program of the update would more than halve its speed.
        jit(lambda params: jax.tree.map(cast, params)),
    )


_programs = WeakCache(_compiled)


def _factors(scale: float) -> np.ndarray:
    """Splits a gradient's scale in the host optimiser into two factors without underflow.

    A clip's factor for gradients near the largest numbers of single precision may be below the
    smallest one, which a CPU takes for 0.
    """
    halves = 0 if scale == 0.0 or scale >= _LEAST else -math.frexp(scale)[1] // 2
    return np.array([math.ldexp(scale, halves), math.ldexp(1.0, -halves)])


def _scaled(g: Any, factors: Any) -> Any:
    """Multiplies a gradient in the host optimiser by two factors, in float32 at least."""
    wide = linalg.factor_dtype(g.dtype)
    first, second = factors.astype(wide)
    return (g.astype(wide) * first * second).astype(g.dtype)


def _norm(x: Any) -> float:
    """Computes a gradient array's norm in the host optimiser, whatever the range of its squares."""
    squares, wide = _squares(x), np.finfo(linalg.factor_dtype(x.dtype))
    if x.size * float(wide.tiny) / float(wide.eps) < squares < math.inf:
        return math.sqrt(squares)
    largest = max((float(np.max(np.abs(part))) for part in _parts(x)), default=0.0)
    if not 0.0 < largest < math.inf:
        return largest
    exponent = math.frexp(largest)[1]
    total = 0.0
    for part in _parts(x):
        part = np.ldexp(part.astype(np.float64), -exponent)
        total += float(np.einsum("i,i->", part, part))
    try:
        return math.ldexp(math.sqrt(total), exponent)
    except OverflowError:
        return math.inf


def _parts(x: Any) -> Iterator[np.ndarray]:
    """Yields an array in the host optimiser in parts, in single precision at least."""
    if x.dtype.itemsize < 4:
        yield from _widened(x)
        return
    flat = np.from_dlpack(x).reshape(-1)
    count = _PART // x.dtype.itemsize
    for start in range(0, flat.size, count):
        yield flat[start : start + count]


def _squares(x: Any) -> float:
    # By NumPy: XLA adds up one number after the other, in five to ten times the time. The view
    # ends here, so that the update may write to this memory.
    if x.dtype.itemsize < 4:
        return sum(map(_squares, _widened(x)), 0.0)
    flat = np.from_dlpack(x).reshape(-1)
    whole = flat.size // _ROW * _ROW
    rows, rest = flat[:whole].reshape(-1, _ROW), flat[whole:]
    found = np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64)
    return float(found + np.einsum("i,i->", rest, rest))


def _widened(x: Any) -> Iterator[np.ndarray]:
    """Yields parts of a half-precision gradient in single precision, for `HostOptimizer`."""
    memory = jax.block_until_ready(x).unsafe_buffer_pointer() if x.size else 0
    held = (ctypes.c_char * x.nbytes).from_address(memory)  # NumPy's own view would not end here
    for start in range(0, x.nbytes, _PART):
        count = min(_PART, x.nbytes - start) // x.dtype.itemsize
        yield np.frombuffer(held, x.dtype, count, start).astype(np.float32)


def _added(sums: Any, gradient: Any) -> Any:
    return jax.tree.map(jnp.add, sums, gradient)


_add, _sum = jax.jit(_added, donate_argnums=(0,)), jax.jit(_added)
