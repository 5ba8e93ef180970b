"""Planted ranks: gated tensor trains are trained to find a tensor of lower ranks.

The loss is the mean squared error relative to the planted tensor, on all of its entries, or of
products with Gaussian vectors, y = Wᵀx, fresh in every step. All seeds train at once, under `vmap`,
in one compiled loop. Penalties act until ``release``; the rest of the steps train what is left on
the loss alone. Methods:

- "mean of gates": the surrogate of the released program, γ · mean of the live gates;
- "surrogate, no β" and "surrogate, β": Ŝ of the paper by its gradient, without and with β Σ‖G‖²;
- "two stages, β": the same until ``switch``, then the late stage, with the planted size for S₀ and
  the square of ``tolerance`` for L₀.
"""

import math
import time
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import Run
from tensorjax import optim

OURS = "surrogate, β"  # the method that is judged
Method = Literal["mean of gates", "surrogate, no β", "surrogate, β", "two stages, β"]
METHODS: tuple[Method, ...] = (
    "mean of gates",
    "surrogate, no β",
    "surrogate, β",
    "two stages, β",
)


CAPTION = "Ranks found from a start that is too high; errors after the release of all penalties"


class Problem(NamedTuple):
    """Planted tensor train: modes, planted ranks, and ranks to start from.

    Attributes:
      modes: sizes.
      ranks: planted, on the interior bonds.
      start: ranks that training starts from.
    """

    modes: tuple[int, ...] = (4,) * 6
    ranks: tuple[int, ...] = (2, 3, 4, 3, 2)
    start: tuple[int, ...] = (4, 12, 12, 12, 4)

    def numbers(self, ranks: tuple[int, ...]) -> int:
        """Counts the parameters of a train with given ranks."""
        bonds = (1, *ranks, 1)
        return sum(n * a * b for n, a, b in zip(self.modes, bonds[:-1], bonds[1:], strict=True))


@dataclass(frozen=True)
class Config:
    """Options of training the planted tensor trains."""

    seeds: int = 10
    """Planted tensors, each with a start of its own."""
    first_seed: int = 1000
    """Seed of the first."""
    steps: int = 4000
    """Updates in all."""
    release: float = 0.6
    """Share of the updates after which nothing but the loss is minimised."""
    core_rate: float = 1e-2
    """Learning rate of the cores (Adam), which falls to a hundredth by a cosine."""
    gate_rate: float = 1e-2
    """Learning rate of the gates, likewise."""
    size_weight: float = 0.3
    """γ, of the surrogate over the size at the start."""
    core_weight: float = 3e-4
    """β."""
    ramp: float = 0.2
    """Share of the updates in which γ grows from zero, so that there is a fit to press on."""
    switch: float = 0.2
    """Share of the updates after which the late stage begins, in the method with two."""
    tolerance: float = 5e-3
    """Relative error of the late stage: L₀ is its square."""
    mean_weight: float = 0.1
    """γ of the mean of gates."""
    batch: int = 0
    """Gaussian vectors per step; 0 takes the loss on all entries."""
    problem: Problem = field(default_factory=Problem)
    """Modes, planted ranks and ranks at the start."""

    def __post_init__(self) -> None:
        """Raises ValueError for options that would fail late in a run."""
        modes, ranks, start = self.problem
        if not len(modes) - 1 == len(ranks) == len(start) > 0:
            raise ValueError(
                f"problem: expected one rank between every two modes, got {modes}, {ranks}, {start}"
            )
        for name in ("ramp", "switch", "release"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected a share in (0, 1], got {getattr(self, name)}")
        if self.steps < 10 or self.seeds < 1:
            raise ValueError(
                f"steps, seeds: expected at least 10 and 1, got {self.steps}, {self.seeds}"
            )

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: one seed of a shorter train."""
        return cls(seeds=1, problem=Problem((4,) * 4, (2, 3, 2), (4, 8, 4)))


def cores(key: jax.Array, modes: tuple[int, ...], ranks: tuple[int, ...]) -> list[jax.Array]:
    """Draws Gaussian cores of a train whose entries have variance one."""
    bonds = (1, *ranks, 1)
    keys = jax.random.split(key, len(modes))
    scale = math.prod(ranks) ** (-0.5 / len(modes))
    return [
        scale * jax.random.normal(k, (a, n, b))
        for k, a, n, b in zip(keys, bonds[:-1], modes, bonds[1:], strict=True)
    ]


def full(params: Any) -> jax.Array:
    """Contracts a gated train to its dense tensor, as a vector."""
    out = params["cores"][0]
    for gate, core in zip(params["gates"], params["cores"][1:], strict=True):
        out = jnp.tensordot(out, gate[:, None, None] * core, 1)
    return out.reshape(-1)


def optimizer(config: Config, method: Method) -> optax.GradientTransformationExtraArgs:
    """Returns a rank-adaptive Adam, with a learning rate of its own for the gates."""
    decay = optax.cosine_decay_schedule(1.0, config.steps, 1e-2)
    inner = optax.partition(
        {
            "core": optax.adam(lambda n: config.core_rate * decay(n)),
            "gate": optax.adam(lambda n: config.gate_rate * decay(n)),
        },
        optim.labels,
    )
    weight = 0.0 if method == "mean of gates" else config.size_weight
    late: dict[str, Any] = {}
    if method == "two stages, β":
        late = {
            "switch": int(config.switch * config.steps),
            "size_target": float(config.problem.numbers(config.problem.ranks)),
            "loss_target": config.tolerance**2,
            "loss_decay": 0.9,
        }
    return optim.rank_adaptive(
        inner,
        size_weight=optax.linear_schedule(0.0, weight, int(config.ramp * config.steps)),
        core_weight=0.0 if method in METHODS[:2] else config.core_weight,
        **late,
    )


def release(config: Config) -> optax.GradientTransformationExtraArgs:
    """Returns Adam on the loss alone, by which dead gates stay dead."""
    count = config.steps - int(config.release * config.steps)
    rate = optax.cosine_decay_schedule(config.core_rate, count, 1e-2)
    return optim.rank_adaptive(optax.adam(rate), size_weight=lambda _: 0.0, core_weight=0.0)


class _End(NamedTuple):
    params: Any
    error: jax.Array
    start: jax.Array
    largest: jax.Array
    released: jax.Array


def _train(config: Config, method: Method, key: jax.Array) -> _End:
    """Trains one planted train from one key."""
    problem, released = config.problem, int(config.release * config.steps)
    planted, start, probes = jax.random.split(key, 3)
    ones = [jnp.ones(r) for r in problem.ranks]
    target = full({"cores": cores(planted, problem.modes, problem.ranks), "gates": ones})
    target = target / jnp.sqrt(jnp.mean(target**2))
    params = {
        "cores": cores(start, problem.modes, problem.start),
        "gates": [jnp.ones(r) for r in problem.start],
    }

    def loss(params: Any, count: jax.Array) -> jax.Array:
        gap = full(params) - target
        if config.batch:
            rows = math.prod(problem.modes[: len(problem.modes) // 2])
            x = jax.random.normal(jax.random.fold_in(probes, count), (config.batch, rows))
            return jnp.mean((x @ gap.reshape(rows, -1)) ** 2) / rows
        return jnp.mean(gap**2)

    def objective(params: Any, count: jax.Array) -> jax.Array:
        gates = jnp.concatenate(params["gates"])
        mean = jnp.sum(gates) / jnp.sum(jax.lax.stop_gradient(gates) > 0)
        return loss(params, count) + config.mean_weight * mean

    def steps(params: Any, first: int, last: int, optimizer: Any, f: Any) -> tuple[Any, Any]:
        def step(carry: Any, count: jax.Array) -> tuple[Any, jax.Array]:
            params, state = carry
            value, gradients = jax.value_and_grad(f)(params, count)
            updates, state = optimizer.update(gradients, state, params, value=value)
            params = optax.apply_updates(params, updates)
            return (params, state), _squares(params)

        carry = (params, optimizer.init(params))
        (params, _), squares = jax.lax.scan(step, carry, jnp.arange(first, last))
        return params, squares

    pressed = objective if method == "mean of gates" else loss
    end, squares = steps(params, 0, released, optimizer(config, method), pressed)
    if released < config.steps:
        end, _ = steps(end, released, config.steps, release(config), loss)
    gap = full(end) - target
    error = jnp.sqrt(jnp.mean(gap**2))  # the target's mean square is one
    return _End(end, error, _squares(params), squares.max(), squares[-1])


def _squares(params: Any) -> jax.Array:
    return sum((jnp.sum(c**2) for c in params["cores"]), start=jnp.zeros(()))


def measure(config: Config, method: Method) -> list[dict[str, Any]]:
    """Trains all seeds with one method; returns a row for each.

    Returns:
      One row per seed: ranks and numbers found, numbers planted, their ratio, whether the ranks are
      those planted, the relative error, Σ‖G‖² at the start, at its largest and at the release, and
      seconds, compilation included and shared by the seeds.
    """
    begin = time.perf_counter()
    keys = jax.vmap(jax.random.key)(config.first_seed + jnp.arange(config.seeds))
    ends = jax.jit(jax.vmap(lambda key: _train(config, method, key)))(keys)
    ends = jax.tree.map(np.asarray, ends)
    seconds = (time.perf_counter() - begin) / config.seeds
    problem, rows = config.problem, []
    for seed in range(config.seeds):
        params = jax.tree.map(lambda x, seed=seed: x[seed], ends.params)
        (ranks,) = optim.ranks(params).values()
        numbers, true = problem.numbers(ranks), problem.numbers(problem.ranks)
        rows.append(
            {
                "method": method,
                "seed": config.first_seed + seed,
                "ranks": ranks,
                "numbers": numbers,
                "planted": true,
                "ratio": numbers / true,
                "exact": ranks == problem.ranks,
                "error": float(ends.error[seed]),
                "Σ‖G‖² start": float(ends.start[seed]),
                "Σ‖G‖² largest": float(ends.largest[seed]),
                "Σ‖G‖² release": float(ends.released[seed]),
                "seconds": seconds,
            }
        )
    return rows


def run(config: Config, run: Run) -> None:
    """Trains with every method, and counts the seeds that find the planted ranks.

    That is, within 1.5 × the planted size and 1 % error.
    """
    rows = []
    for method in run.progress(METHODS, "methods"):
        rows += measure(config, method)
    shown = [row | {"ranks": " ".join(map(str, row["ranks"]))} for row in rows]
    run.table("planted", shown, caption=CAPTION, key=["method", "seed"])
    for method in METHODS:
        found = [row for row in rows if row["method"] == method]
        good = sum(row["ratio"] <= 1.5 and row["error"] <= 0.01 for row in found)
        run.metric(f"found, {method}", good / len(found))
        run.metric(f"exact, {method}", sum(row["exact"] for row in found) / len(found))
        if method == OURS:
            said = f"planted ranks found on {good} of {len(found)} seeds ({method})"
            run.compare(said, good == len(found))
