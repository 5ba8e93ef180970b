"""Group "encoder" of `bench/layers`: training steps of the encoder of CoMERA's experiment.

A call is one step: loss, gradient, update; parameters and state are given up to it. Sizes are
those of the arrays, and the peak is what XLA says of the compiled step. The first call draws the
parameters too, and GaLore's makes its projections, which later steps keep.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.bench._linears import costs
from experiments.bench._solving import Answer, Problem, Way
from tensorjax import nn, optim
from tensorjax.models.encoder import Encoder, EncoderConfig

_LENGTH = 128
_RATE = 1e-4
_GALORE = 128
_LINEAR = nn.TT(rank=30)
_EMBEDDING = nn.TT(rank=32, num_shape=(16, 20, 10, 10), feature_shape=(4, 4, 8, 6))
_MIB = 2**20


def problems(small: bool) -> list[Problem]:
    """Returns a problem for each batch size: one training step of every variant of the encoder.

    On accelerators there are more of them, and they are in bfloat16.
    """
    cpu = jax.default_backend() == "cpu"
    dtype = jnp.float32 if cpu else jnp.bfloat16
    every = [make() for make in trainings(small, dtype).values()]
    out = []
    for batch in (2,) if small else (1, 8) if cpu else (1, 8, 32, 128):
        name = f"batch {batch}, {every[0].config.length} tokens, {jnp.dtype(dtype).name}"
        out.append(Problem(name, [training.way(batch) for training in every]))
    return out


def trainings(small: bool, dtype: Any) -> dict[tuple[str, str], Callable[[], "Training"]]:
    """Returns a function for each library and variant that creates its model and optimiser."""
    config = EncoderConfig.tiny() if small else EncoderConfig(dropout=0.0, length=_LENGTH)
    tensorised: dict[str, Any] = {"linear": _LINEAR, "embedding": _EMBEDDING}
    if small:
        tensorised = {"linear": nn.TT(rank=4), "embedding": nn.TT(rank=4)}
    made: dict[tuple[str, str], tuple[dict[str, Any], Callable[[], Any]]] = {
        ("tensorjax", ""): (tensorised, lambda: optax.adam(_RATE)),
        ("tensorjax", "rank_adaptive"): (
            tensorised,
            lambda: optim.rank_adaptive(optax.adam(_RATE), size_weight=1e-3, core_weight=1e-4),
        ),
        ("Adam", "dense"): ({}, lambda: optax.adam(_RATE)),
        ("GaLore", "linear layers"): ({}, lambda: _galore(small, ("kernel",))),
        ("GaLore", "embedding too"): ({}, lambda: _galore(small, ("kernel", "tokens"))),
    }
    return {
        name: lambda name=name, specs=specs, optimizer=optimizer: Training(
            *name, config, specs, dtype, optimizer()
        )
        for name, (specs, optimizer) in made.items()
    }


def _galore(small: bool, names: tuple[str, ...]) -> optax.GradientTransformation:
    """Returns GaLore for the matrices whose names are given, with Adam for all other parameters."""
    rank = 4 if small else _GALORE

    def projected(params: Any) -> Any:
        def one(path: Any, p: Any) -> Any:
            named = any(name in jax.tree_util.keystr(path) for name in names)
            project = named and p.ndim == 2 and min(p.shape) > rank
            return optax.contrib.GaLoreDimensionNumbers() if project else None

        return jax.tree_util.tree_map_with_path(one, params)

    return optax.contrib.galore(
        _RATE, rank=rank, update_proj_gap=200, scale=0.25, weight_dimension_numbers=projected
    )


class Training:
    """Training of one encoder: model, optimiser and state, shared by all batch sizes."""

    def __init__(
        self,
        library: str,
        variant: str,
        config: EncoderConfig,
        specs: dict[str, Any],
        dtype: Any,
        optimizer: optax.GradientTransformation,
    ):
        self.library, self.variant, self.config = library, variant, config
        self.make = lambda: Encoder(config, **specs, dtype=dtype, rngs=nnx.Rngs(0))
        self.optimizer = optax.with_extra_args_support(optimizer)
        self.graph, _, self.rest = nnx.split(nnx.eval_shape(self.make), nnx.Param, ...)
        self.state: Any = None

    def start(self) -> tuple[Any, Any]:
        """Returns initial parameters and optimiser state."""
        params = nnx.state(self.make(), nnx.Param)
        state = self.optimizer.init(params)
        # Optimisers begin with one zero in many places; what is given up must be there once.
        return params, jax.tree.map(lambda x: jnp.array(np.array(x)), state)

    def step(self, params: Any, state: Any, tokens: jax.Array, labels: jax.Array) -> Any:
        """Computes one optimiser step; returns parameters and state."""

        def loss(params: Any) -> jax.Array:
            logits = nnx.merge(self.graph, params, self.rest)(tokens)
            each = optax.losses.softmax_cross_entropy_with_integer_labels(
                logits.astype(jnp.float32), labels
            )
            return each.mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = self.optimizer.update(gradient, state, params, value=value)
        return optax.apply_updates(params, updates), state

    def data(self, batch: int) -> tuple[jax.Array, jax.Array]:
        """Draws tokens, with Zipf-distributed words, and labels."""
        rng = np.random.default_rng(batch)
        sides = (batch, self.config.length)
        # Words are as frequent as Zipf has them.
        tokens = np.minimum(rng.zipf(1.2, sides), self.config.vocabulary - 1).astype(np.int32)
        return jnp.asarray(tokens), jnp.asarray(rng.integers(0, 3, batch, np.int32))

    def way(self, batch: int) -> Way:
        """Returns the way to be timed: one compiled training step at a batch size."""
        data = self.data(batch)
        program = jax.jit(self.step, donate_argnums=(0, 1))

        def call() -> Any:
            before = self.start() if self.state is None else self.state
            self.state = jax.block_until_ready(program(*before, *data))

        def answer(_: Any) -> Answer:
            return self.sizes(program.lower(*self.state, *data).compile())

        return Way(self.library, self.variant, call, answer)

    def sizes(self, program: Any) -> Answer:
        """Returns the memory in MiB of parameters, optimiser state and a compiled step."""

        def mib(tree: Any) -> float:
            return sum(x.nbytes for x in jax.tree.leaves(tree)) / _MIB

        params, state = self.state
        memory = program.memory_analysis()
        peak = (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
        )
        return {
            "parameters": sum(x.size for x in jax.tree.leaves(params)),
            "parameters MiB": mib(params),
            "state MiB": mib(state),
            "with gradients MiB": 2 * mib(params) + mib(state),
            "peak MiB": peak / _MIB,
            "flops": costs(program)["flops"],
        }
