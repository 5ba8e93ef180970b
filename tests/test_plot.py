"""Drawings: what is in the axes, and clear errors for what cannot be drawn."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

pytest.importorskip("matplotlib", reason="drawings have an extra of their own")

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import to_rgb

from tensorjax import mera, offload, pde, plot, tt, tucker
from tensorjax.plot._axes import PALE

KEY = jax.random.key(3)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def texts(ax: Any) -> list[str]:
    return sorted(text.get_text() for text in ax.texts)


def sizes(*numbers: int) -> list[str]:
    return sorted(map(str, numbers))


def test_a_train_has_a_node_for_every_core_and_the_sizes_of_its_indices() -> None:
    ax = plot.network(tt.random(KEY, (3, 4, 5), (2, 6)))
    assert len(ax.patches) == 3
    assert texts(ax) == sizes(3, 4, 5, 2, 6)
    a = plot.network(tt.random_matrix(KEY, (2, 3), (4, 5), 7))
    assert texts(a) == sizes(2, 3, 4, 5, 7)


@pytest.mark.parametrize("core", ["dense", "train"])
def test_a_tucker_tensor_has_a_core_and_factors(core: str) -> None:
    x = tucker.random(KEY, (8, 9, 7), (3, 4, 2))
    if core == "train":
        x = tucker.Tucker(tt.from_dense(x.core, tol=1e-6), x.factors)
    ax = plot.network(x)
    assert len(ax.patches) == (4 if core == "dense" else 6)
    assert set(sizes(8, 9, 7, 3, 4, 2)) <= set(texts(ax))


def test_the_causal_cone_is_coloured() -> None:
    m = mera.random(KEY, (2,) * 12, 2, boundary="periodic")
    cone = mera.causal_cone(m, 5)
    ax = plot.network(m, sites=(5,), labels=False)
    assert not ax.texts
    colours = [patch.get_facecolor()[:3] for patch in ax.patches]
    pale = colours.count(to_rgb(PALE))
    halves = sum(layer.wiring.periodic for layer in m.layers)  # drawn at both ends
    tensors = sum(len(layer.disentanglers) + len(layer.isometries) for layer in m.layers)
    assert len(colours) == tensors + halves + 1
    inside = sum(len(layer.disentanglers) + len(layer.isometries) for layer in cone)
    assert inside + 1 <= len(colours) - pale <= inside + 1 + halves


def test_ranks_are_drawn_beside_their_bounds() -> None:
    x = tt.random(KEY, (4,) * 6, 3)
    ax = plot.ranks(x, tt.ones((2,) * 300), labels=["x", "ones"])
    assert ax.lines[0].get_ydata().tolist() == [3] * 5
    assert max(ax.lines[-1].get_ydata()) <= 12
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["x", "ones"]


@pytest.mark.parametrize("dims", [1, 2])
def test_patches_cover_their_points(dims: int) -> None:
    grid = tt.quantics_grid([-1.0] * dims, [3.0] * dims, 3, fused=dims == 2)
    n = grid.shape[0]
    deep = [tt.random(KEY, (n,), 1), tt.random(KEY, (n, n), 2)]
    prefixes = [(0, k) for k in range(n)] + [(k,) for k in range(1, n)]
    trains = [deep[0]] * n + [deep[1]] * (n - 1)
    ax = plot.patches(
        tt.patches.PatchedTT(grid.shape, prefixes, trains), grid, points=[[0.0] * dims]
    )
    (drawn,) = ax.collections
    assert drawn.get_array().tolist() == [1] * n + [2] * (n - 1)
    boxes = [path.get_extents() for path in drawn.get_paths()]
    sizes_ = [4.0 / 4, 4.0 / 4] if dims == 2 else [1.0, 1.0]
    assert np.allclose([boxes[0].width, boxes[0].height], sizes_)
    assert np.isclose(sum(b.width * (b.height if dims == 2 else 1) for b in boxes), 4.0**dims)


def test_patches_of_other_grids_are_named() -> None:
    p = tt.patches.PatchedTT((2, 2), [()], [tt.ones((2, 2))])
    with pytest.raises(ValueError, match=r"p: expected shape \(2, 2, 2\)"):
        plot.patches(p, tt.quantics_grid(0.0, 1.0, 3))
    with pytest.raises(ValueError, match="interleaved or fused"):
        plot.patches(p, tt.quantics_grid([0.0, 0.0], [1.0, 1.0], 1, interleaved=False))
    with pytest.raises(TypeError, match="grid: expected"):
        plot.patches(p, 3)  # type: ignore[arg-type]


def test_singular_values_are_over_the_norm() -> None:
    ax = plot.singular_values(1e30 * tt.ones((4, 4, 4)))
    assert [line.get_ydata().tolist() for line in ax.lines] == [[pytest.approx(1.0)]] * 2


def test_marginals_coordinates_and_histories() -> None:
    box = pde.Box.fourier(3, 24, 6.0)
    start = pde.Gaussian(np.zeros(3), np.diag([1.0, 0.5, 0.5]))
    problem = pde.Liouville(np.diag([0.1, 0.0, -0.1]), start, box)
    solution = pde.integrate(problem, t1=0.1, dt=0.05, coordinates="fixed")
    curve = plot.marginal(solution.final, box, 2).lines[0]
    assert np.trapezoid(curve.get_ydata(), curve.get_xdata()) == pytest.approx(1, abs=1e-3)
    assert plot.marginal(solution.final, box, (0, 2), points=32).collections
    turned = pde.affine(np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    first = plot.coordinates(turned, box, (0, 1), lines=5).lines[0]
    assert np.ptp(first.get_ydata()) == pytest.approx(0, abs=1e-12)  # y_1 = x_2 is constant on it
    assert plot.history(solution, "dt").lines[0].get_ydata() == pytest.approx([0.05, 0.05])
    with pytest.raises(ValueError, match=r"expected one of .*rank"):
        plot.history(solution, "ranks")
    with pytest.raises(ValueError, match="two different"):
        plot.coordinates(turned, box, (1, 1))


def test_shards_name_the_devices_that_hold_them() -> None:
    mesh = jax.make_mesh((2, 2), ("a", "b"))
    x = jax.device_put(jnp.zeros((8, 6)), NamedSharding(mesh, P("b")))
    ax = plot.shards(x)
    assert len(ax.patches) == 2
    held = sorted(int(n) for text in ax.texts for n in text.get_text().split(","))
    assert held == sorted(d.id for d in mesh.devices.ravel())
    with pytest.raises(ValueError, match="after the second"):
        plot.shards(jax.device_put(jnp.zeros((2, 2, 4)), NamedSharding(mesh, P(None, None, "a"))))
    with pytest.raises(ValueError, match="one axis or more"):
        plot.shards(jnp.zeros(()))


def test_a_schedule_has_a_row_for_every_kind_of_activity() -> None:
    trace = offload.Trace()
    for step in range(3):
        trace.add("read", "layer 1", step, step + 0.25, step)
        trace.add("compute", "layer 1 backward", step + 0.5, step + 1.0, step)
    ax = plot.schedule(trace)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["compute", "read"]
    assert [text.get_text().strip() for text in ax.texts] == ["step 1", "step 2"]
    assert ax.get_legend() is not None
    assert ax.get_xlim() == (0.0, 2.0)
    assert len(plot.schedule(trace, [0]).texts) == 1
    with pytest.raises(ValueError, match="steps: expected some that were traced"):
        plot.schedule(offload.Trace())
    with pytest.raises(TypeError, match=r"trace: expected an offload\.Trace, got int"):
        plot.schedule(3)  # pyright: ignore[reportArgumentType]


def test_drawings_go_into_given_axes_and_refuse_what_cannot_be_drawn() -> None:
    figure, axes = plt.subplots(1, 2)
    x = tt.ones((2, 3))
    assert plot.network(x, ax=axes[0]) is axes[0]
    for wrong in (figure, axes):
        with pytest.raises(TypeError, match="ax: expected"):
            plot.ranks(x, ax=wrong)
    with pytest.raises(TypeError, match="TT, TTMatrix, Tucker or MERA"):
        plot.network(np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only a MERA"):
        plot.network(x, sites=(0,))
    with pytest.raises(ValueError, match="one or more"):
        plot.ranks()
    with pytest.raises(ValueError, match="one for each"):
        plot.ranks(x, labels=["a", "b"])
    with pytest.raises(TypeError, match="outside jit"):
        jax.jit(lambda t: plot.singular_values(t) and 0)(x)


def test_objects_of_another_kind_are_told_how_to_get_the_right_one() -> None:
    box, map = pde.Box.fourier(2, 16), pde.AffineMap.identity(2)
    state = pde.State(pde.Gaussian(np.zeros(2), np.eye(2)).train(box, map, 1e-3), map, 0.5)
    for call, message in (
        (lambda: plot.marginal(state.v, box), "state: expected a pde.State, such as solution.fin"),
        (lambda: plot.coordinates(state, box), "map: expected a pde.AffineMap, such as solution.f"),
        (lambda: plot.history(state), "solution: expected a pde.Solution, such as pde.integrate"),
        (lambda: pde.moments(state, map, box), "got State, whose train is its .v"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
