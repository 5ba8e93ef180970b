"""GPT-2 as a list of layers, for training with parameters that do not fit on the device."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tensorjax import nn, offload
from tensorjax.models._spec import Spec, check_spec
from tensorjax.models.gpt2._attention import attend
from tensorjax.models.gpt2._blocks import EPSILON, SPREAD, Block
from tensorjax.models.gpt2._config import GPT2Config
from tensorjax.models.gpt2._model import GPT2, check_length
from tensorjax.parallel import Single

_LAYOUT = Single()


def layers(
    config: GPT2Config,
    *,
    linear: Spec = nn.Dense(),  # noqa: B008  (a frozen dataclass)
    attention: str | None = None,
) -> list[offload.Layer]:
    """The layers of a GPT-2: its embedding, its blocks, its logits and loss.

    The token table is a group of its own, which the first layer and the last one use: its gradient
    is the sum of both. The computation is in the dtype of the parameters that a layer is given.

    Args:
      config: sizes.
      linear: spec of the linear layers, as for `GPT2`.
      attention: implementation of attention, as for `GPT2`.

    Returns:
      ``config.layers + 2`` layers over batches of `batch`, using the groups of `groups`.

    Example:
      >>> import optax
      >>> from tensorjax import offload
      >>> from tensorjax.models import gpt2
      >>> config = gpt2.GPT2Config.tiny()
      >>> [layer.name for layer in gpt2.layers(config)]
      ['embedding', 'block000', 'block001', 'head']
      >>> trainer = offload.Trainer(
      ...     gpt2.layers(config), gpt2.initial(config, jax.random.key(0)), optax.adam(1e-3)
      ... )
      >>> tokens = jnp.arange(8, dtype=jnp.int32).reshape(1, 8)
      >>> 4 < trainer.step(gpt2.batch(tokens, tokens + 1)).loss < 6      # log 120 = 4.8
      True
      >>> trainer.close()
    """
    linear = check_spec("linear", linear)
    graph, abstract = nnx.split(_abstract_block(config, linear))

    def drop(x: jax.Array, key: Any, number: int) -> jax.Array:
        if key is None or not config.dropout:
            return x
        keep = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - config.dropout, x.shape)
        return jnp.where(keep, x / jnp.asarray(1 - config.dropout, x.dtype), jnp.zeros_like(x))

    def embedding(params: Any, _: None, batch: Mapping[str, Any], key: Any) -> jax.Array:
        table, positions = params
        length = check_length(batch["tokens"], config)
        x = _LAYOUT.embed(table["tokens"], batch["tokens"])
        return drop(x + _LAYOUT.positions(positions["positions"], length), key, 0)

    def block(params: Any, x: jax.Array, batch: Mapping[str, Any], key: Any) -> jax.Array:
        (mine,) = params
        state = jax.tree.map(lambda leaf: leaf, abstract)
        nnx.replace_by_pure_dict(state, mine)
        made = nnx.merge(graph, state)
        q, k, v = made.heads(x, _LAYOUT)
        y = attend(q, k, v, attention, is_causal=True)
        return made.after(x, y, _LAYOUT, lambda y, number: drop(y, key, number))

    def head(params: Any, x: jax.Array, batch: Mapping[str, Any], key: Any) -> jax.Array:
        table, norm = params
        x = _LAYOUT.norm(x, norm["scale"], norm["bias"], EPSILON)
        logits = _LAYOUT.logits(x, table["tokens"])
        weights = batch["weights"]
        total, _ = _LAYOUT.cross_entropy(logits, batch["targets"], weights, config.vocabulary)
        return total / jnp.asarray(weights.size, total.dtype)

    names = [_block(number) for number in range(config.layers)]
    return [
        offload.Layer(name="embedding", apply=embedding, uses=("tokens", "positions")),
        *(offload.Layer(name=name, apply=block) for name in names),
        offload.Layer(name="head", apply=head, uses=("tokens", "norm")),
    ]


def groups(model: GPT2) -> dict[str, Any]:
    """The parameters of a model, by the groups that `layers` use; host arrays.

    Args:
      model: a GPT-2.

    Returns:
      "tokens", "positions", "block000" and so on, "norm": nested dictionaries of NumPy arrays.
    """
    held = jax.device_get(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    blocks = {
        _block(number): jax.tree.map(lambda x, n=number: x[n], held["blocks"])
        for number in range(model.config.layers)
    }
    return {
        "tokens": {"tokens": held["tokens"]},
        "positions": {"positions": held["positions"]},
        **blocks,
        "norm": held["norm"],
    }


def load_groups(model: GPT2, params: Mapping[str, Any]) -> None:
    """Gives a model the parameters of groups, as `groups` returns them.

    Args:
      model: a GPT-2 of the same sizes; it is changed.
      params: groups, such as `offload.Trainer.params` returns.

    Raises:
      ValueError: a group that is missing, or of another shape.
    """
    wanted = {"tokens", "positions", "norm", *map(_block, range(model.config.layers))}
    if set(params) != wanted:
        missing, spare = sorted(wanted - set(params)), sorted(set(params) - wanted)
        raise ValueError(f"params: missing groups {missing}, unknown groups {spare}")
    blocks = [params[_block(number)] for number in range(model.config.layers)]
    pure = {
        "tokens": params["tokens"]["tokens"],
        "positions": params["positions"]["positions"],
        "blocks": jax.tree.map(lambda *xs: np.stack(xs), *blocks),
        "norm": dict(params["norm"]),
    }
    state = nnx.state(model, nnx.Param)
    held = nnx.to_pure_dict(state)
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(held), jax.tree.leaves(pure), strict=True
    ):
        if old.shape != new.shape:
            where = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(f"params: {where}: expected shape {old.shape}, got {new.shape}")
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, pure))
    nnx.update(model, state)


def initial(
    config: GPT2Config,
    key: jax.Array,
    *,
    linear: Spec = nn.Dense(),  # noqa: B008  (a frozen dataclass)
    param_dtype: Any = jnp.float32,
) -> dict[str, Callable[[], Any]]:
    """Functions that draw the parameters of each group of `layers`, one group at a time.

    So a model is made that never is in memory as a whole. Numbers are drawn as `GPT2` draws them,
    but others come out.

    Args:
      config: sizes.
      key: of `jax.random`.
      linear: spec of the linear layers.
      param_dtype: of the parameters.

    Returns:
      A function without arguments for each group, which returns what `groups` would.
    """
    linear = check_spec("linear", linear)
    keys = jax.random.split(key, config.layers + 2)

    @jax.jit
    def block(key: jax.Array) -> Any:
        made = Block(config, linear, dtype=None, param_dtype=param_dtype, rngs=nnx.Rngs(params=key))
        return nnx.to_pure_dict(nnx.state(made, nnx.Param))

    def table(name: str, key: jax.Array, rows: int, padded: int) -> Callable[[], Any]:
        def draw() -> Any:
            found = jax.random.normal(key, (rows, config.features), jnp.float32) * SPREAD
            return {name: jnp.pad(found.astype(param_dtype), ((0, padded - rows), (0, 0)))}

        return draw

    def norm() -> Any:
        ones = jnp.ones((config.features,), param_dtype)
        return {"scale": ones, "bias": jnp.zeros_like(ones)}

    return {
        "tokens": table("tokens", keys[0], config.vocabulary, config.padded),
        "positions": table("positions", keys[1], config.length, config.length),
        **{_block(n): (lambda key=keys[2 + n]: block(key)) for n in range(config.layers)},
        "norm": norm,
    }


def batch(tokens: Any, targets: Any, weights: Any = None) -> dict[str, Any]:
    """A batch for `layers`, whose loss is then the mean over all targets by their weights.

    Args:
      tokens: integers (batch, length).
      targets: integers (batch, length): the tokens that come next.
      weights: (batch, length), of each target; all ones if None. They are divided by their mean
        over the whole batch, so a batch may be cut into microbatches of whatever weights.

    Returns:
      A dictionary of "tokens", "targets" and "weights".

    Raises:
      ValueError: shapes that differ, weights without a positive sum.
    """
    tokens, targets = np.asarray(tokens), np.asarray(targets)
    weights = np.ones(tokens.shape, np.float32) if weights is None else np.asarray(weights)
    for name, x in (("targets", targets), ("weights", weights)):
        if x.shape != tokens.shape:
            raise ValueError(f"{name}: expected the shape of tokens, {tokens.shape}, got {x.shape}")
    if not weights.mean() > 0:
        raise ValueError("weights: expected a positive sum, got none; leave such a batch out")
    scaled = (weights / weights.mean()).astype(np.float32)
    return {"tokens": tokens, "targets": targets, "weights": scaled}


def _block(number: int) -> str:
    return f"block{number:03d}"


def _abstract_block(config: GPT2Config, linear: Spec) -> Block:
    return nnx.eval_shape(
        lambda: Block(config, linear, dtype=None, param_dtype=jnp.float32, rngs=nnx.Rngs(0))
    )
