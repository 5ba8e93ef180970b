"""Detection of optimisers whose update of one parameter group depends on other groups."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tensorjax.offload._training.storage.arrays import cpu
from tensorjax.offload._training.weak_cache import WeakCache

# Gradients of three steps, the first of which would be clipped: Adam's first update does not depend
# on how large its gradient is. What a group is multiplied by, of which others shall not know: NaN
# shows what has not moved any update yet. And relative error of updates.
_SCALES, _POISONS, _CLOSE = (1e3, 1e-2, 1.0), (math.nan, 1e3), 1e-3
_MOST = 8  # groups that are tried


def check_separate(
    transformation: Any, shapes: Mapping[str, Any], kinds: Mapping[str, Any] | None = None
) -> None:
    """Raises ValueError if an optimiser's update of one parameter group depends on other groups.

    Arguments are those of `looks_across`.
    """
    if looks_across(transformation, shapes, kinds):
        raise ValueError(
            "optimizer: expected one whose updates of a group do not depend on other groups, for a "
            "trainer updates each by itself; got one whose updates of all together are others. "
            "Clip the norm of all gradients by Trainer(clip=) in place of "
            "optax.clip_by_global_norm; what finds one step size for all (Prodigy, D-Adaptation, "
            "Mechanic) or clips some groups together cannot be had: choose optax.adamw, a fixed or "
            "scheduled step size, or optax.clip_by_block_rms"
        )


def looks_across(
    transformation: Any, shapes: Mapping[str, Any], kinds: Mapping[str, Any] | None = None
) -> bool:
    """Whether an optimiser's update of one parameter group depends on others, by a trial.

    Tried for three steps, on two groups of each kind, but on eight at most, with two numbers along
    each axis. What cannot be tried so is taken for one that does not look.

    Args:
      transformation: of Optax's form.
      shapes: of the parameters of all groups.
      kinds: what is done to each group, where that goes by its name.

    >>> import optax
    >>> shapes = {name: jax.ShapeDtypeStruct((64, 3), np.float32) for name in "ab"}
    >>> looks_across(optax.adamw(1e-3), shapes)
    False
    >>> looks_across(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), shapes)
    True
    """
    if len(shapes) < 2:
        return False
    several: dict[Any, list[str]] = {}
    for name, tree in shapes.items():
        structure = str(jax.tree.map(lambda x: len(x.shape), tree))
        several.setdefault((structure, kinds and kinds[name]), []).append(name)
    first, second = ([names[n] for names in several.values() if len(names) > n] for n in (0, 1))
    some = [*dict.fromkeys([*first[:6], *second, *first])][:_MOST]
    rng = np.random.default_rng(0)
    params, *gradients = (
        {g: jax.tree.map(lambda x, s=scale: _small(rng, x, s), shapes[g]) for g in some}
        for scale in (1.0, *_SCALES)
    )
    try:
        with (
            jax.default_device(cpu()), jax.numpy_dtype_promotion("standard"),
            np.errstate(all="ignore"),
        ):  # fmt: skip
            updates = _updates(transformation)
            expected = updates(params, gradients)
            for group in some:
                for by in _POISONS:
                    found = updates(*_poisoned((params, gradients), group, by))
                    if _differ(_others(expected, group), _others(found, group)):
                        return True
            return False
    except Exception:
        return False


@WeakCache
def _updates(transformation: Any) -> Any:
    """Returns a jitted function of trial updates, to see if parameter groups affect each other."""

    @jax.jit
    def updates(params: Any, gradients: Any) -> list[Any]:
        state, found = transformation.init(params), []
        for gradient in gradients:
            update, state = transformation.update(gradient, state, params)
            params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, update)
            found.append(update)
        return found

    return updates


def _poisoned(trees: Any, group: str, by: float) -> Any:
    """Scales one parameter group's arrays, to see if other groups' updates change by it."""
    return jax.tree.map(
        lambda tree: {
            name: jax.tree.map(lambda x: (x * by).astype(x.dtype), x) if name == group else x
            for name, x in tree.items()
        },
        trees,
        is_leaf=lambda tree: isinstance(tree, dict),
    )


def _others(updates: Any, group: str) -> list[Any]:
    return jax.tree.leaves([{**update, group: None} for update in updates])


def _differ(expected: list[Any], found: list[Any]) -> bool:
    """Whether a group's trial updates change with other groups' arrays, beyond rounding."""
    return any(
        np.any(y)
        and not np.max(np.abs(np.subtract(y, x, dtype=np.float64)), initial=0.0)
        <= _CLOSE * np.max(np.abs(x), initial=0.0)
        for x, y in zip(expected, found, strict=True)
    )


def _small(rng: np.random.Generator, like: Any, scale: float) -> np.ndarray:
    return (scale * rng.standard_normal((2,) * len(like.shape))).astype(like.dtype)
