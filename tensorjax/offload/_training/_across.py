"""Whether an optimiser looks across groups of parameters, which a trainer gives it one by one."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax.offload._training._host import cpu

# Gradients of two steps, the first of which would be clipped: Adam's first update does not depend
# on how large its gradient is. And relative error of updates.
_SCALES, _CLOSE = (1e3, 1e-2), 1e-3


def looks_across(transformation: Any, shapes: Mapping[str, Any]) -> bool:
    """Whether updates of groups together are seen to differ from those of each by itself.

    Tried for two steps, on two to four groups of as many structures as there are, with two numbers
    along each axis. What cannot be tried so is taken for one that does not look.

    Args:
      transformation: of Optax's form.
      shapes: of the parameters of all groups.

    >>> import optax
    >>> shapes = {name: jax.ShapeDtypeStruct((64, 3), np.float32) for name in "ab"}
    >>> looks_across(optax.adamw(1e-3), shapes)
    False
    >>> looks_across(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), shapes)
    True
    """
    if len(shapes) < 2:
        return False
    kinds: dict[str, str] = {}
    for name, tree in shapes.items():
        kinds.setdefault(str(jax.tree.map(lambda x: len(x.shape), tree)), name)
    some = [*dict.fromkeys([*kinds.values(), *shapes])][: max(2, min(4, len(kinds)))]
    rng = np.random.default_rng(0)
    params = {g: jax.tree.map(lambda x: _small(rng, x, 1.0), shapes[g]) for g in some}
    gradients = {g: [jax.tree.map(lambda x, s=scale: _small(rng, x, s), params[g])
                     for scale in _SCALES] for g in some}  # fmt: skip

    try:
        with jax.default_device(cpu()), jax.numpy_dtype_promotion("standard"):
            return bool(_differ(transformation)(params, gradients))
    except Exception:
        return False


@functools.lru_cache(maxsize=16)
def _differ(transformation: Any) -> Any:
    """Compiled once for a transformation and structures."""

    def last(params: Any, gradients: Any) -> Any:
        state, updates = transformation.init(params), None
        for gradient in gradients:
            updates, state = transformation.update(gradient, state, params)
        return updates

    @jax.jit
    def differ(params: Any, gradients: Any) -> jax.Array:
        steps = [{g: gradients[g][n] for g in params} for n in range(len(_SCALES))]
        together = jax.tree.leaves(last(params, steps))
        alone = jax.tree.leaves({g: last(params[g], gradients[g]) for g in params})
        return jnp.any(jnp.stack([
            jnp.max(jnp.abs(a - b)) > _CLOSE * jnp.max(jnp.abs(b))
            for a, b in zip(together, alone, strict=True)
        ]))  # fmt: skip

    return differ


def _small(rng: np.random.Generator, like: Any, scale: float) -> np.ndarray:
    return (scale * rng.standard_normal((2,) * len(like.shape))).astype(like.dtype)
