"""Storage of cores in eight bits, with a scale for each and unbiased stochastic rounding."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._formats import random_arrays
from tensorjax._placement import _is_alone
from tensorjax._transfer import on_device
from tensorjax._typing import Tree
from tensorjax.optim._stacked_layers import Stacks, labels
from tensorjax.optim._tensorised_layers import LOOKED_FOR

Kind = Literal["int8", "float8_e4m3fn", "float8_e5m2"]
# Elements of a core up to which NumPy quantises it.
_SMALL = 2**18


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Quantized:
    """Core of a tensorised layer quantised to eight bits: ``values`` times ``scale``.

    Attributes:
      values: int8 or float8, of the shape of the core.
      scale: float32, one for a core; of stacked layers one for each copy's core.
      dtype: of the core that it was made from.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import optim
      >>> params = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
      >>> stored = optim.quantize(params, key=None)
      >>> stored["cores"][0].values.dtype.name, stored["cores"][0].nbytes
      ('int8', 16)
    """

    values: jax.Array
    scale: jax.Array
    dtype: np.dtype = dataclasses.field(metadata={"static": True})

    @property
    def nbytes(self) -> int:
        """Bytes of a quantised core, its scales included."""
        return self.values.nbytes + self.scale.nbytes


def quantize(params: Tree, dtype: Kind = "int8", *, key: jax.Array | None) -> Tree:
    """Quantises the cores of tensorised layers to eight bits, by unbiased stochastic rounding.

    A core G becomes integers, or floating-point numbers of eight bits, Q, and a scale s = max|G| /
    (largest number of the type). G / s lies between two neighbours in the type, and is rounded to
    either with the probability that makes E[s Q] = G. So steps of an optimiser that are far below
    the distance of two neighbours are not lost, but taken now and then, and a training needs no
    second copy of the cores in full precision::

        @jax.jit
        def step(stored, state, batch, key):
            params = optim.dequantize(stored)
            value, gradients = jax.value_and_grad(loss)(params, batch)  # straight through
            updates, state = optimizer.update(gradients, state, params, value=value)
            params = optax.apply_updates(params, updates)
            return optim.quantize(params, key=key), state

    Gates, biases and dense parameters stay as they are; zeros stay zeros, so that dead indices stay
    dead. The optimiser's moments are not touched. Shrink, save or export what `dequantize` returns.

    Args:
      params: any tree of parameters.
      dtype: "int8", all steps equal; or, relative to each entry, "float8_e4m3fn" (3 bits of
        mantissa) or "float8_e5m2" (2 bits).
      key: for the rounding, another one in every step. None rounds to the nearest, as for a model
        that is trained no further; in training small steps would be lost.

    Returns:
      The same tree, with a `Quantized` in place of every core. Cores with NaN or Inf are NaN
      as a whole when they come back.

    Raises:
      ValueError: no cores, an unknown dtype.
      TypeError: complex cores; a key that is none.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import optim
      >>> params = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
      >>> stored = optim.quantize(params, "float8_e4m3fn", key=jax.random.key(0))
      >>> float(optim.dequantize(stored)["cores"][0].max())
      1.0

    Source: Yang et al., "CoMERA" (arXiv 2405.14377), whose released program trains with cores of
    low precision; S. Gupta et al., "Deep Learning with Limited Numerical Precision" (ICML 2015,
    arXiv 1502.02551), for stochastic rounding. Departures: no learnt scales; storage, while
    products are in the precision of the cores that come back.
    """
    _check.choice("dtype", dtype, get_args(Kind))
    key = None if key is None else _check.key(key)
    leaves, structure = jax.tree.flatten(params)
    found = [k for k, label in enumerate(jax.tree.leaves(labels(params))) if label == "core"]
    if not found:
        raise ValueError(f"params: expected at least one tensorised layer, that is {LOOKED_FOR}")
    axes = Stacks.of(params).axes
    cores = [jnp.asarray(leaves[k]) for k in found]
    for core in cores:
        if not jnp.issubdtype(core.dtype, jnp.floating):
            raise TypeError(f"params: expected cores of real floating numbers, got {core.dtype}")
    for k, core, up in zip(found, cores, _thresholds(key, cores), strict=True):
        leaves[k] = _quantized(core, jnp.dtype(dtype), axes[k], up)
    return jax.tree.unflatten(structure, leaves)


def dequantize(stored: Tree) -> Tree:
    """Converts quantised cores in a parameter tree back to their own dtypes.

    Args:
      stored: a tree with `Quantized` cores; other leaves stay as they are.

    Returns:
      The tree that was given to `quantize`, with its cores rounded.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import optim
      >>> params = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
      >>> optim.dequantize(optim.quantize(params, key=None))["cores"][1].shape
      (3, 5, 1)

    Source: as `quantize`.
    """

    def whole(x: Any) -> Any:
        if not isinstance(x, Quantized):
            return x
        return (x.values.astype(x.scale.dtype) * x.scale).astype(x.dtype)

    return jax.tree.map(whole, stored, is_leaf=lambda x: isinstance(x, Quantized))


def straight_through(params: Tree, dtype: Kind = "int8", *, key: jax.Array | None) -> Tree:
    """Rounds cores to eight bits in training, with the gradient of the identity.

    For a training that keeps cores in full precision, and is to work once they are quantised: the
    loss is taken at the rounded cores, and its gradient is that of the cores themselves.

    Args:
      params: any tree of parameters.
      dtype: as for `quantize`.
      key: as for `quantize`; None rounds to the nearest, as the model will be.

    Returns:
      The tree with rounded cores.

    Raises:
      ValueError, TypeError: as `quantize`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import optim
      >>> params = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
      >>> def total(p):
      ...     return sum(map(jnp.sum, optim.straight_through(p, key=None)["cores"]))
      >>> float(jax.grad(total)(params)["cores"][0].min())
      1.0

    Source: Y. Bengio, N. Léonard, A. Courville, "Estimating or Propagating Gradients Through
    Stochastic Neurons" (arXiv 1308.3432).
    """
    rounded = dequantize(quantize(jax.lax.stop_gradient(params), dtype, key=key))
    return jax.tree.map(lambda x, y: x if x is y else _passed(jnp.asarray(x), y), params, rounded)


@jax.custom_jvp
def _passed(x: jax.Array, rounded: jax.Array) -> jax.Array:
    """Rounds a core to eight bits, with the gradient of the identity (straight-through)."""
    del x
    return rounded


@_passed.defjvp
def _passed_jvp(primals: Any, tangents: Any) -> Any:
    return primals[1], tangents[0]


def _thresholds(key: jax.Array | None, cores: Sequence[jax.Array]) -> Sequence[Any]:
    """Draws for each entry of some cores the share of a step from which on it is rounded up.

    Numbers of JAX's random key whether NumPy draws them or a program.
    """
    if key is None:
        return [0.5] * len(cores)
    shapes, wide = [c.shape for c in cores], [_wide(c.dtype) for c in cores]
    if len(set(wide)) == 1 and not _check.is_traced(cores):
        drawn = random_arrays.on_host(jax.random.uniform, key, shapes, wide[0])
        if drawn is not None:
            return drawn
    keys = jax.random.split(key, len(cores))
    return [
        jax.random.uniform(k, shape, dtype)
        for k, shape, dtype in zip(keys, shapes, wide, strict=True)
    ]


def _wide(dtype: Any) -> Any:
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def _quantized(core: jax.Array, dtype: Any, axes: int, up: Any) -> Quantized:
    """Quantises one core, or a stack of them over its first axes, to eight bits with a scale.

    Small concrete ones by NumPy: a program would be compiled for every shape.
    """
    if _is_alone() and core.size <= _SMALL and not _check.is_traced(core, up):
        with np.errstate(all="ignore"):  # of NaN and Inf the scale tells
            values, scale = _rounded(np.asarray(core), dtype, axes, np.asarray(up))
        values, scale = on_device([values, scale])
    else:
        values, scale = _rounded_by_program(core, dtype, axes, up)
    return Quantized(values, scale, np.dtype(core.dtype))


def _rounded(core: Any, dtype: Any, axes: int, up: Any) -> tuple[Any, Any]:
    """Rounds a core to numbers of eight bits with a scale, in NumPy or in JAX."""
    xp: Any = np if isinstance(core, np.ndarray) else jnp
    is_int = jnp.issubdtype(dtype, jnp.integer)
    top = float((jnp.iinfo if is_int else jnp.finfo)(dtype).max)
    wide = _wide(core.dtype)
    exact = core.astype(wide)
    own = tuple(range(axes, core.ndim))
    # Of cores so small that no scale would hold their share, more than one goes to each step.
    least = float(jnp.finfo(wide).smallest_normal)
    largest = xp.max(xp.abs(exact), own, keepdims=True, initial=0)
    scale = xp.maximum(largest / top, least).astype(wide)
    shares = exact / scale
    step = 1.0 if is_int else _distance(shares, dtype, xp)
    rounded = xp.clip(xp.floor(shares / step + up) * step, -top, top)
    rounded = xp.where(xp.isnan(rounded), 0, rounded) if is_int else rounded
    return rounded.astype(dtype), scale


_rounded_by_program = jax.jit(_rounded, static_argnums=(1, 2))


def _distance(x: Any, dtype: Any, xp: Any) -> Any:
    """Returns the spacing of an eight-bit floating dtype around the entries of a scaled core."""
    info = jnp.finfo(dtype)
    _, exponent = xp.frexp(x)  # |x| in [1/2, 1) · 2^exponent
    exponent = xp.maximum(exponent - 1, int(info.minexp)) - int(info.nmant)
    return xp.ldexp(xp.ones_like(x), exponent)
