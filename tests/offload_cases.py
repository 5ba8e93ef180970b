"""What the tests of the trainer share: a tiny GPT-2, its batches, and one jitted step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from tensorjax.models import gpt2

CONFIG = gpt2.GPT2Config.tiny(layers=3)


def batches(count: int, *, rows: int = 4, config: Any = CONFIG) -> list[Any]:
    """Batches of random tokens, the weights of some targets zero."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(count):
        tokens = rng.integers(0, config.vocabulary, (rows, config.length + 1)).astype(np.int32)
        weights = rng.uniform(0, 2, (rows, config.length)) * (rng.random((rows, 1)) < 0.8)
        weights[0] += 0.1
        found.append(gpt2.batch(tokens[:, :-1], tokens[:, 1:], weights))
    return found


def model(seed: int = 0) -> gpt2.GPT2:
    return gpt2.GPT2(CONFIG, rngs=nnx.Rngs(seed))


class Monolith:
    """The same training as one program: gradient of the whole model, one update."""

    def __init__(self, optimizer: Any, clip: float | None = None) -> None:
        made = model()
        self.graph, self.params = nnx.split(made, nnx.Param)
        if clip is not None:
            optimizer = optax.chain(optax.clip_by_global_norm(clip), optimizer)
        self.state = jax.jit(optimizer.init)(self.params)

        def loss(params: Any, batch: Any) -> jax.Array:
            total, _ = nnx.merge(self.graph, params).loss(
                batch["tokens"], batch["targets"], batch["weights"]
            )
            return total / jnp.asarray(batch["weights"].size, total.dtype)

        @jax.jit
        def step(params: Any, state: Any, batch: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(params, batch)
            with jax.numpy_dtype_promotion("standard"):
                updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, value

        self._step = step

    def step(self, batch: Any) -> float:
        self.params, self.state, loss = self._step(self.params, self.state, batch)
        return float(loss)

    def groups(self) -> dict[str, Any]:
        return gpt2.groups(nnx.merge(self.graph, self.params))
