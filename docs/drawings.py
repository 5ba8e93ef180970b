"""Draws the pictures of the page on `tensorjax.plot`, with what that page documents.

Run `python docs/drawings.py` from the root of the repository (extras plot and nn).
"""

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure

from tensorjax import mera, offload, pde, plot, tt, tucker

FOLDER = Path(__file__).parent / "_static"


def networks() -> Figure:
    """Draws one network of every format, and a causal cone."""
    keys = jax.random.split(jax.random.key(0), 4)
    figure, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained")
    train = tt.random(keys[0], (4,) * 6, (4, 6, 8, 6, 4))
    plot.network(train, ax=axes[0, 0])
    plot.network(tt.random_matrix(keys[1], (2,) * 6, (3,) * 6, 5), ax=axes[0, 1])
    plot.network(tucker.random(keys[2], (8, 9, 7), (3, 4, 2)), ax=axes[1, 0])
    plot.network(mera.random(keys[3], (2,) * 16, 3), sites=(6, 7), ax=axes[1, 1])
    return figure


def densities() -> Figure:
    """Draws a density that is rotated and sheared, its coordinates, and its rank over time."""
    box = pde.Box.fourier(2, 64, 7.0)
    start = pde.Gaussian(np.array([1.5, 0.0]), np.diag([1.0, 0.2]))
    problem = pde.Liouville(np.array([[0.0, 1.0], [-1.0, 0.0]]), start, box)
    solution = pde.integrate(problem, t1=0.8, tol=1e-5)
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    plot.marginal(solution.final, box, ax=axes[0])
    plot.coordinates(solution.final.map, box, ax=axes[1])
    plot.history(solution, "rank", ax=axes[2])
    return figure


def patched() -> Figure:
    """Draws a narrow ring beside a peak, and the patches of its approximation."""
    grid = tt.quantics_grid([-1.0, -1.0], [1.0, 1.0], bits=12, fused=True)

    def ring(digits: np.ndarray) -> np.ndarray:
        x, y = grid.coordinates(digits).T
        r = np.hypot(x - 0.3, y + 0.2)
        return np.exp(-((r - 0.4) ** 2) / 2e-4) + np.exp(-((x + 0.6) ** 2 + (y - 0.6) ** 2) / 1e-2)

    p, _ = tt.patches.cross(ring, grid.shape, tol=1e-4, max_rank=12, key=jax.random.key(0))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    axis = np.linspace(-1, 1, 400, endpoint=False)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    values = tt.patches.evaluate(p, grid.nearest(points))
    left.contourf(axis, axis, np.asarray(values).T, np.linspace(-0.1, 1.1, 13))
    left.set(xlabel="$x_1$", ylabel="$x_2$", title="Function, 4096 x 4096 points", aspect="equal")
    plot.patches(p, grid, ax=right).set(title="Patches", aspect="equal")
    return figure


def spectra() -> Figure:
    """Draws the ranks and the singular values of a train, of its square, and after rounding."""
    grid = np.linspace(0, 1, 6)
    total = np.asarray(sum(np.ix_(*[grid] * 6)), np.float32)
    x = tt.from_dense(1 / (1 + total), tol=1e-5)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    labels = ["x", "x * x", "x * x, rounded to 1e-4"]
    plot.ranks(x, x * x, tt.round(x * x, tol=1e-4), labels=labels, ax=axes[0])
    plot.singular_values(x, ax=axes[1])
    return figure


def training() -> Figure:
    """Draws what a plan keeps where, the schedule of two steps from disk, shards of a matrix."""
    width, names = 512, [f"layer {k}" for k in range(8)]

    def linear(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return jnp.tanh((batch["x"] if x is None else x) @ params[0])

    def loss(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return jnp.mean((x @ params[0] - batch["x"]) ** 2)

    layers = [offload.Layer(name=name, apply=linear) for name in names[:-1]]
    layers.append(offload.Layer(name=names[-1], apply=loss))
    params = {name: np.eye(width, dtype=np.float32) for name in names}
    batch, optimizer = {"x": jnp.ones((64, width))}, optax.adam(1e-3)
    plan = offload.plan(
        layers, params, optimizer, batch,
        machine=offload.Machine(read=2e9, write=1e9, place=2e10, update=1e9),
        device_bytes=1 << 23, host_bytes=1 << 24, seconds=dict.fromkeys(names, (0.01, 0.02)),
    )  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
    plot.memory(plan, ax=axes[0])
    capacity = offload.capacity(offload.tensors(params, optimizer))
    with (
        tempfile.TemporaryDirectory() as folder,
        offload.TensorStore(folder, capacity) as store,
        offload.Trainer(layers, params, optimizer, store=store) as trainer,
    ):
        for _ in range(4):
            trainer.step(batch)
        trainer.commit()
        plot.schedule(trainer.trace, ax=axes[1]).set_title("two steps from disk", fontsize=9)
    mesh = jax.make_mesh((2, 4), ("rows", "columns"))
    x = jax.device_put(jnp.zeros((96, 128)), NamedSharding(mesh, P("rows", "columns")))
    plot.shards(x, ax=axes[2])
    return figure


def main() -> None:
    """Writes the pictures beside the site's style sheet."""
    jax.config.update("jax_num_cpu_devices", 8)  # simulated, to be drawn
    for draw in (networks, spectra, densities, patched, training):
        draw().savefig(FOLDER / f"{draw.__name__}.png", dpi=110)


if __name__ == "__main__":
    main()
