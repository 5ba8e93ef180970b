"""A trainer's script: tensorised layers in Flax, Optax with adapted ranks, checked strictly.

What JAX, Flax and Optax leave untyped is said where it is used; nothing of tensorjax needs it.
"""

from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
from flax import nnx

from tensorjax import models, nn, offload, optim, parallel


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.table = nn.TTEmbedding(1000, 16, rank=4, rngs=rngs)
        self.up = nn.TTLinear(16, 64, rank=8, rngs=rngs)
        self.down = nn.TuckerLinear(64, 4, rank=3, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.table(ids)
        assert_type(x, jax.Array)
        return self.down(jax.nn.relu(self.up(x)))


def loss(model: Classifier, ids: jax.Array, labels: jax.Array) -> jax.Array:
    logits = model(ids)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.asarray(losses).mean()  # pyright: ignore[reportUnknownMemberType]


def main() -> None:
    rngs = nnx.Rngs(0)
    model = Classifier(rngs)
    ids = jax.random.randint(jax.random.key(0), (8,), 0, 1000)
    print(loss(model, ids, ids % 4), model.up.ranks, model.up.in_features)
    plan = model.up.plan(8)
    print(plan)

    params: nnx.State[Any, Any] = nnx.state(model, nnx.Param)  # pyright: ignore
    chain = optim.rank_adaptive(optax.adam(1e-2))
    state = chain.init(params)
    print(optim.size(params), optim.ranks(params), optim.status(state))
    kept, moments = optim.shrink(params, state)
    assert_type(kept, nnx.State[Any, Any])
    print(kept, moments)

    linear = nnx.Linear(16, 64, rngs=rngs)
    small, certificate = nn.from_linear(linear, tol=0.5)
    print(certificate.error, nn.to_linear(small).kernel.shape)
    rules: dict[str, nn.Spec | None] = {"*": nn.TT(rank=4)}
    print(nn.summary(nn.tensorize(nnx.Sequential(linear), rules)))

    config = models.gpt2.GPT2Config.tiny()
    gpt = models.gpt2.GPT2(config, rngs=rngs)
    text = models.gpt2.generate(gpt, np.zeros((1, 4), np.int32), 3, key=jax.random.key(1))
    mesh = parallel.mesh(1, 1)
    layout = parallel.layout("summa", mesh)
    print(text, layout.spec(("embed", "mlp")), offload.backends())
    print(offload.capacity(offload.tensors({"a": np.ones((3, 4))}, optax.adam(0.1))))


if __name__ == "__main__":
    main()
