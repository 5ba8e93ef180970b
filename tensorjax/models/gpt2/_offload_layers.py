"""GPT-2 as the layers of `offload.Trainer`: training of models larger than device memory."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from tensorjax import nn, offload
from tensorjax._ids import IGNORED
from tensorjax._typing import ArrayLike, DTypeLike
from tensorjax.models._checks import check_spec
from tensorjax.models.gpt2._attention import attend
from tensorjax.models.gpt2._blocks import EPSILON, SPREAD, Block, dropped
from tensorjax.models.gpt2._config import GPT2Config
from tensorjax.models.gpt2._huggingface import cast
from tensorjax.models.gpt2._model import GPT2, axes_of, check_length
from tensorjax.parallel import Layout, Single, shardings


def layers(
    config: GPT2Config,
    *,
    linear: nn.Spec = nn.Dense(),  # noqa: B008  (a frozen dataclass)
    attention: str | None = None,
    layout: Layout | None = None,
) -> list[offload.Layer]:
    """Returns a GPT-2 as a list of `offload.Layer`: embedding, blocks, logits with loss.

    The token table is a group of its own, which the first layer and the last one use: its gradient
    is the sum of both. The computation is in the dtype of the parameters that a layer is given.

    Args:
      config: `GPT2Config`, the sizes.
      linear: specification of the linear layers, such as `nn.Dense()` or `nn.TT(rank=30)`.
      attention: "xla", "cudnn" or None, as for `GPT2`.
      layout: of `tensorjax.parallel`, over which every layer is split; its parameters and batches
        are then where `engine` puts them. None where nothing is split.

    Returns:
      ``config.layers + 2`` layers over batches of `batch`, using the groups of `groups`.

    Raises:
      TypeError: ``linear`` is no spec of `tensorjax.nn`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
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

    Source: ours; the model is that of Radford et al. (2019).
    """
    return [*_layers(config, check_spec("linear", linear), attention, layout)]


@functools.lru_cache(maxsize=16)
def _layers(
    config: GPT2Config, linear: nn.Spec, attention: str | None, layout: Layout | None
) -> tuple[offload.Layer, ...]:
    """Builds GPT-2's layers for offloaded training; cached, so that equal ones share programs."""
    graph, abstract = nnx.split(_abstract_block(config, linear))
    layout = Single() if layout is None else layout
    specs = _specs(config, layout, linear)
    x_spec, batch_spec = layout.x_spec(), layout.data_spec()

    def over(function: Any, uses: tuple[str, ...], x: Any, out: Any) -> Any:
        where = (tuple(specs[group] for group in uses), x, batch_spec, PartitionSpec())
        return layout.over(function, where, out)

    def drop(x: jax.Array, key: Any, number: int) -> jax.Array:
        if key is None or not config.dropout:
            return x
        return dropped(x, layout.key(jax.random.fold_in(key, number), x), config.dropout)

    def embedding(params: Any, _: None, batch: Mapping[str, Any], key: Any) -> jax.Array:
        table, positions = params
        length = check_length(batch["tokens"], config)
        x = layout.embed(table["tokens"], batch["tokens"], vocabulary=config.vocabulary)
        return drop(x + layout.positions(positions["positions"], length), key, 0)

    def block(params: Any, x: jax.Array, batch: Mapping[str, Any], key: Any) -> jax.Array:
        (mine,) = params
        state = jax.tree.map(lambda leaf: leaf, abstract)
        nnx.replace_by_pure_dict(state, mine)
        made = nnx.merge(graph, state)
        q, k, v = made.heads(x, layout)
        y = attend(q, k, v, attention, is_causal=True)
        return made.after(x, y, layout, lambda y, number: drop(y, key, number))

    def head(params: Any, x: jax.Array, batch: Mapping[str, Any], key: Any) -> jax.Array:
        table, norm = params
        x = layout.norm(x, norm["scale"], norm["bias"], EPSILON)
        logits = layout.logits(x, table["tokens"])
        weights = batch["weights"]
        total, _ = layout.cross_entropy(logits, batch["targets"], weights, config.vocabulary)
        count = weights.size * layout.ways(layout.batch)
        return total / jnp.asarray(count, total.dtype)

    names = [_block(number) for number in range(config.layers)]
    first, last = ("tokens", "positions"), ("tokens", "norm")
    split = over(block, (_block(0),), x_spec, x_spec)  # one function, compiled once for all blocks
    return (
        offload.Layer(
            name="embedding", apply=over(embedding, first, PartitionSpec(), x_spec), uses=first
        ),
        *(offload.Layer(name=name, apply=split) for name in names),
        offload.Layer(name="head", apply=over(head, last, x_spec, PartitionSpec()), uses=last),
    )


def engine(
    config: GPT2Config,
    layout: Layout,
    *,
    linear: nn.Spec = nn.Dense(),  # noqa: B008  (a frozen dataclass)
    activations: offload.Activations = "recompute",
) -> offload.Engine:
    """Returns an `offload.Engine` that places a GPT-2's layers and batches on a mesh.

    Args:
      config: `GPT2Config`, the sizes, as for `layers`.
      layout: the same as of the layers.
      linear: specification of the linear layers, such as `nn.Dense()` or `nn.TT(rank=30)`.
      activations: "recompute", "keep" or "offload", as for `offload.Engine`.

    Returns:
      An `offload.Engine` with shardings for all groups of `layers` and for batches, on the layout's
      mesh; without shardings where the layout has no mesh.

    Raises:
      TypeError: ``linear`` is no spec of `tensorjax.nn`.
      ValueError: sizes that the layout does not split into equal blocks.

    Example:
      >>> from tensorjax import parallel
      >>> from tensorjax.models import gpt2
      >>> layout = parallel.layout("2d", parallel.mesh(1, 1))
      >>> engine = gpt2.engine(gpt2.GPT2Config.tiny(), layout)
      >>> tuple(engine.shardings["tokens"]["tokens"].spec)
      ('c', 'r')

    Source: ours.
    """
    specs = _specs(config, layout, check_spec("linear", linear))
    if layout.mesh is None:
        return offload.Engine(activations=activations)
    return offload.Engine(
        activations=activations,
        shardings=shardings(specs, layout.mesh),
        data=NamedSharding(layout.mesh, layout.data_spec()),
    )


def groups(model: GPT2) -> dict[str, Any]:
    """Extracts a `GPT2`'s parameters for offload as host arrays, in the groups of `layers`.

    Args:
      model: `GPT2`, its parameters concrete.

    Returns:
      "tokens", "positions", "block000" and so on, "norm": nested dictionaries of NumPy arrays.

    Raises:
      TypeError: ``model`` is no `GPT2`.

    Example:
      >>> from flax import nnx
      >>> from tensorjax.models import gpt2
      >>> model = gpt2.GPT2(gpt2.GPT2Config.tiny(), rngs=nnx.Rngs(0))
      >>> list(gpt2.groups(model))
      ['tokens', 'positions', 'block000', 'block001', 'norm']

    Source: ours.
    """
    if not isinstance(model, GPT2):
        raise TypeError(f"model: expected a GPT2, got {type(model).__name__}")
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
    """Loads the parameter groups of offloaded training, as `groups` returns them, into a GPT-2.

    Args:
      model: a GPT-2 of the same sizes; it is changed, unless there is an error.
      params: groups, such as `offload.Trainer.params` returns.

    Raises:
      ValueError: a group that is missing, or of another shape; numbers that are too large for the
        dtype of the model's parameters.

    Example:
      >>> from flax import nnx
      >>> from tensorjax.models import gpt2
      >>> config = gpt2.GPT2Config.tiny()
      >>> model, other = (gpt2.GPT2(config, rngs=nnx.Rngs(seed)) for seed in (0, 1))
      >>> gpt2.load_groups(model, gpt2.groups(other))
      >>> bool((model.tokens[...] == other.tokens[...]).all())
      True

    Source: ours.
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

    def loaded(path: Any, old: jax.Array, new: Any) -> jax.Array:
        where = f"params: {jax.tree_util.keystr(path, simple=True, separator='.')}"
        return jnp.asarray(cast(where, np.asarray(new), old.dtype))

    nnx.replace_by_pure_dict(state, jax.tree_util.tree_map_with_path(loaded, held, pure))
    nnx.update(model, state)


def initial(
    config: GPT2Config,
    key: jax.Array,
    *,
    linear: nn.Spec = nn.Dense(),  # noqa: B008  (a frozen dataclass)
    param_dtype: DTypeLike = jnp.float32,
) -> dict[str, Callable[[], Any]]:
    """Returns functions that draw GPT-2's initial parameters for offload, one for each group.

    With them a model is initialised that is never in memory as a whole. The distributions are those
    of `GPT2`, the draws are not.

    Args:
      config: `GPT2Config`, the sizes.
      key: of `jax.random`.
      linear: specification of the linear layers, such as `nn.Dense()` or `nn.TT(rank=30)`.
      param_dtype: of the parameters.

    Returns:
      A function without arguments for each group, which returns what `groups` would.

    Raises:
      TypeError: ``linear`` is no spec of `tensorjax.nn`.

    Example:
      >>> import jax
      >>> from tensorjax.models import gpt2
      >>> draws = gpt2.initial(gpt2.GPT2Config.tiny(), jax.random.key(0))
      >>> list(draws)
      ['tokens', 'positions', 'block000', 'block001', 'norm']
      >>> draws["norm"]()["scale"].shape
      (32,)

    Source: Radford et al. (2019), section 2.3, and the released code: normal entries of standard
    deviation 0.02, less on the layers that end in a residual sum, as for `GPT2`.
    """
    linear = check_spec("linear", linear)
    keys = jax.random.split(key, config.layers + 2)

    block = _drawn(config, linear, param_dtype)

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


@functools.lru_cache(maxsize=16)
def _drawn(config: GPT2Config, linear: nn.Spec, param_dtype: Any) -> Callable[[jax.Array], Any]:
    """Returns a jitted function that draws a block's initial parameters for offload; cached."""

    @jax.jit
    def block(key: jax.Array) -> Any:
        made = Block(config, linear, dtype=None, param_dtype=param_dtype, rngs=nnx.Rngs(params=key))
        return nnx.to_pure_dict(nnx.state(made, nnx.Param))

    return block


def batch(
    tokens: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
) -> dict[str, Any]:
    """Returns a training batch for GPT-2's offload layers, weights scaled to a mean of one.

    Args:
      tokens: integers (batch, length).
      targets: integers (batch, length): the tokens that come next; −100 asks for no prediction.
      weights: (batch, length), of each target; all ones if None, and 0 where the target is −100.
        They are divided by their mean over the whole batch, so a batch may be cut into microbatches
        of whatever weights.

    Returns:
      A dictionary of "tokens" and "targets", NumPy integers (batch, length), and "weights", float32
      (batch, length) of mean one.

    Raises:
      ValueError: shapes that differ, weights without a positive sum.

    Example:
      >>> from tensorjax.models import gpt2
      >>> made = gpt2.batch([[5, 7, 2]], [[7, 2, -100]])
      >>> print(made["weights"])
      [[1.5 1.5 0. ]]

    Source: ours.
    """
    tokens, targets = np.asarray(tokens), np.asarray(targets)
    weights = np.ones(tokens.shape, np.float32) if weights is None else np.asarray(weights)
    for name, x in (("targets", targets), ("weights", weights)):
        if x.shape != tokens.shape:
            raise ValueError(f"{name}: expected the shape of tokens, {tokens.shape}, got {x.shape}")
    weights = np.where(targets == IGNORED, 0, weights)
    if not 0 < weights.mean() < np.inf:
        raise ValueError(
            "weights: expected a positive, finite sum over targets that are not −100, got "
            f"{weights.sum()}; leave such a batch out"
        )
    scaled = (weights / weights.mean()).astype(np.float32)
    return {"tokens": tokens, "targets": targets, "weights": scaled}


def _block(number: int) -> str:
    return f"block{number:03d}"


def _specs(config: GPT2Config, layout: Layout, linear: nn.Spec) -> dict[str, Any]:
    """Returns the `PartitionSpec` of every parameter of a GPT-2's layers for offload, by group."""
    for axis, size in (
        ("heads", config.heads), ("embed", config.features), ("mlp", config.hidden)
    ):  # fmt: skip
        layout.padded(axis, size)
    if layout.padded("vocab", config.padded) != config.padded:
        raise ValueError(
            f"layout: expected one that splits the {config.padded} rows of the padded vocabulary "
            f"into equal blocks, got {layout.name!r} with {layout.ways(layout.wide)} of them"
        )
    held = nnx.state(_abstract_block(config, linear), nnx.Param)
    axes = nnx.to_pure_dict(jax.tree_util.tree_map_with_path(axes_of, held))
    block = _placed(layout, axes)
    vector = layout.spec(("embed",))
    return {
        "tokens": {"tokens": layout.spec(("vocab", "embed"))},
        "positions": {"positions": layout.spec(("position", "embed"))},
        **{_block(number): block for number in range(config.layers)},
        "norm": {"scale": vector, "bias": vector},
    }


def _placed(layout: Layout, axes: Any) -> Any:
    return jax.tree.map(
        lambda names: layout.spec(tuple(names)),
        axes,
        is_leaf=lambda node: isinstance(node, PartitionSpec),
    )


def _abstract_block(config: GPT2Config, linear: nn.Spec) -> Block:
    return nnx.eval_shape(
        lambda: Block(config, linear, dtype=None, param_dtype=jnp.float32, rngs=nnx.Rngs(0))
    )
