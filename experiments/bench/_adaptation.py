"""Group "adaptation" of `bench/layers`: what `optim.rank_adaptive` adds to a training step.

The same model, tensorised by ``nn.tensorize(model, compress_to=10)``, is trained under AdamW alone
and under ``optim.rank_adaptive(adamw, compress_to=10, by=…)``: a step each by turns, in one
process, and the processor time of each. Parameters and states are donated, as trainings do.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from tensorjax import nn, optim

FEWER, BY = 10.0, 0.67
# Steps after a cut or a change of basis, in which it may be judged.
_TRIAL = 4


class Case(NamedTuple):
    """Model with the inputs and labels of a training step."""

    name: str
    model: nnx.Module
    inputs: jax.Array
    labels: jax.Array


class _Network(nnx.Module):
    """Multilayer perceptron of two hidden layers."""

    def __init__(self, widths: tuple[int, ...], rngs: nnx.Rngs) -> None:
        pairs = itertools.pairwise(widths)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairs])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Computes logits."""
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class _Block(nnx.Module):
    """Pre-LN transformer block as of GPT-2."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Applies attention and MLP."""
        x = x + self.attention(self.norms[0](x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class _Decoder(nnx.Module):
    """Language model of a few blocks."""

    def __init__(self, tokens: int, width: int, blocks: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(tokens, width, rngs=rngs)
        self.blocks = nnx.List([_Block(width, rngs) for _ in range(blocks)])
        self.out = nnx.Linear(width, tokens, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Computes the logits of the next tokens."""
        x, mask = self.embed(ids), nnx.make_causal_mask(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.out(x)


class _Recurrent(nnx.Module):
    """Classifier of sequences by a GRU."""

    def __init__(self, inputs: int, width: int, rngs: nnx.Rngs) -> None:
        self.width = width
        self.rnn = nnx.RNN(nnx.GRUCell(inputs, width, rngs=rngs))
        self.out = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Computes logits from the last state."""
        begin = jnp.zeros((len(x), self.width), x.dtype)
        states: Any = self.rnn(x, initial_carry=begin)
        return self.out(states[:, -1])


def cases(small: bool) -> list[Case]:
    """Draws the models, with inputs and labels; small ones for trying out."""
    rng, rngs = np.random.default_rng(0), nnx.Rngs(0)

    def case(name: str, model: nnx.Module, shape: tuple[int, ...], tokens: int = 0) -> Case:
        x = rng.integers(0, tokens, shape) if tokens else rng.standard_normal(shape, np.float32)
        y = rng.integers(0, tokens or 10, shape if tokens else shape[:1])
        return Case(name, model, jnp.asarray(x), jnp.asarray(y))

    if small:
        return [case("64-48, 16 rows", _Network((64, 48), rngs), (16, 64))]
    perceptron = _Network((784, 256, 256, 10), rngs)
    return [
        case("784-256-256-10, 128 rows", perceptron, (128, 784)),
        case("GRU of 128, 32 × 16 steps", _Recurrent(64, 128, rngs), (32, 16, 64)),
        case("GPT-2 block of 128, 8 × 32 tokens", _Decoder(512, 128, 1, rngs), (8, 32), 512),
        case("2 GPT-2 blocks of 256, 8 × 64 tokens", _Decoder(1024, 256, 2, rngs), (8, 64), 1024),
    ]


class _Training:
    """Training of a model by one optimiser, a step at a time, with processor times."""

    def __init__(self, case: Case, model: nnx.Module, optimizer: Any) -> None:
        graph, params, rest = nnx.split(model, nnx.Param, ...)

        def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
            def loss(params: Any) -> jax.Array:
                out: Any = nnx.merge(graph, params, rest)
                return optax.softmax_cross_entropy_with_integer_labels(out(x), y).mean()

            value, gradients = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(gradients, state, params, value=value)
            return optax.apply_updates(params, updates), state

        self.params = jax.tree.map(jnp.array, params)  # donated: each training has its own
        self.state = jax.tree.map(jnp.array, optimizer.init(params))
        self.data = case.inputs, case.labels
        begin = time.process_time()
        program = jax.jit(step, donate_argnums=(0, 1))
        self.program: Callable[..., Any] = program.lower(
            self.params, self.state, *self.data
        ).compile()
        self.compiling = time.process_time() - begin
        self.seconds: list[float] = []

    def step(self) -> None:
        """Makes a step, and notes its processor time."""
        begin = time.process_time()
        self.params, self.state = self.program(self.params, self.state, *self.data)
        jax.block_until_ready(self.params)
        self.seconds.append(time.process_time() - begin)


def measure(case: Case, steps: int) -> dict[str, Any]:
    """Trains a model with and without adaptation, by turns; returns what that adds, in percent.

    "usual" are steps without a cut, a change of basis or a trial of either, compared by medians;
    "all" are all steps of a training of this length, by their sum. "cuts ms" is what all of those
    left out of the usual ones took in addition: it does not grow with the length.
    """
    model = nn.tensorize(case.model, compress_to=FEWER)
    inner = optax.adamw(1e-3)
    adaptive = optim.rank_adaptive(inner, compress_to=FEWER, by=int(BY * steps))
    plain = _Training(case, model, optax.with_extra_args_support(inner))
    ours = _Training(case, model, adaptive)
    ticks = []
    for _ in range(steps):
        plain.step()
        ours.step()
        ticks.append(int(ours.state.tick))
    alone, both = np.array(plain.seconds) * 1e3, np.array(ours.seconds) * 1e3
    events = np.flatnonzero(np.diff(ticks)) + 1
    usual = np.ones(steps, bool)
    for after in range(_TRIAL):
        usual[np.minimum(events + after, steps - 1)] = False
    usual[0] = False
    base = float(np.median(alone[usual]))
    return {
        "model": case.name,
        "parameters": optim.size(plain.params, everything=True),
        "inner ms": base,
        "usual + %": 100 * (float(np.median(both[usual])) / base - 1),
        "all + %": 100 * (float(np.sum(both[1:]) / np.sum(alone[1:])) - 1),
        "events": len(events),
        "cuts ms": float(np.sum(both[1:][~usual[1:]] - np.median(both[usual]))),
        "compiling s": ours.compiling,
        "inner compiling s": plain.compiling,
        "status": optim.status(ours.state).status,
    }
