"""Gradients on their way to the host."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tensorjax import offload
from tensorjax.offload import Engine
from tensorjax.offload._training.passes.gradient_transfers import Gradients
from tensorjax.offload._training.storage.process_shards import Shards
from tensorjax.offload._training.trace import Trace
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer

A, B = (offload.Layer(name=n, apply=lambda *_: None, uses=("tied", n)) for n in "ab")


class Offers:
    """What is offered, once that is let."""

    def __init__(self) -> None:
        self.let, self.got = threading.Event(), []
        self.let.set()

    def __call__(self, group: str, gradient: Any, partial: int) -> None:
        assert self.let.wait(30)
        self.got.append((group, np.asarray(gradient["w"]).tolist(), partial))


@pytest.fixture
def offers() -> Offers:
    return Offers()


@pytest.fixture
def gradients(offers: Offers) -> Iterator[Gradients]:
    made = Gradients(
        (A, B), dict.fromkeys(("tied", "a", "b"), (np.dtype(np.float32),)),
        Engine(), HostOptimizer(optax.sgd(0.1)), Shards({}, {}), measured=True,
        offer=offers, trace=Trace(),
    )  # fmt: skip
    yield made
    offers.let.set()
    made.close()


def of(*values: float) -> list[Any]:
    return [{"w": jnp.full(2, value, jnp.float32)} for value in values]


def test_layers_that_share_a_group_add_to_it(gradients: Gradients, offers: Offers) -> None:
    for step in range(2):
        gradients.begin(step)
        gradients.take(gradients.look(B, of(1.0, 2.0)))
        gradients.take(gradients.look(A, of(3.0, 4.0)))
        gradients.wait()
        squares = 2 * (2.0**2 + 4.0**2 + 4.0**2)
        assert gradients.norm == pytest.approx(squares**0.5, rel=1e-15)
    # While b is offered, the tied group is not whole yet: 8 bytes.
    assert offers.got == 2 * [("b", [2, 2], 8), ("tied", [4, 4], 0), ("a", [4, 4], 0)]


def test_one_layer_is_taken_while_the_next_is_computed(
    gradients: Gradients, offers: Offers
) -> None:
    gradients.begin(0)
    offers.let.clear()
    gradients.take(gradients.look(B, of(1.0, 2.0)))  # returns, though nothing can be offered
    assert offers.got == []
    second = threading.Thread(target=gradients.take, args=(gradients.look(A, of(3.0, 4.0)),))
    second.start()
    second.join(0.2)
    assert second.is_alive()  # the device holds the gradients of no third layer
    offers.let.set()
    second.join(30)
    gradients.wait()
    assert [group for group, *_ in offers.got] == ["b", "tied", "a"]


def test_what_goes_wrong_is_raised(gradients: Gradients, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no way to the host")

    monkeypatch.setattr(gradients, "_offer", fail)
    gradients.take(gradients.look(B, of(1.0, 2.0)))
    with pytest.raises(RuntimeError, match="no way"):
        gradients.wait()
    gradients.wait()  # it was told once


def test_a_trainer_computes_while_gradients_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first gradients arrive only once the layer before has begun its backward pass."""
    began, add = threading.Event(), Gradients._add

    def late(self: Gradients, group: str, *more: Any) -> Any:
        assert group != "b" or began.wait(30)
        return add(self, group, *more)

    class Engine(offload.Engine):
        def backward(self, layer: offload.Layer, *arguments: Any) -> Any:
            began.set()
            return super().backward(layer, *arguments)

    monkeypatch.setattr(Gradients, "_add", late)
    layers, params, batch = two_layers()
    with offload.Trainer(layers, params, optax.sgd(0.1), engine=Engine()) as trainer:
        assert np.isfinite(trainer.step(batch).loss)
        assert [s.name for s in trainer.trace.spans("gradient")] == ["b", "a"]


def test_a_step_that_fails_on_the_way_to_the_host_ends_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no way to the host")

    layers, params, batch = two_layers()
    trainer = offload.Trainer(layers, params, optax.sgd(0.1))
    monkeypatch.setattr(Gradients, "_add", fail)
    with pytest.raises(RuntimeError, match="no way"):
        trainer.step(batch)
    with pytest.raises(RuntimeError, match="half-way"):
        trainer.step(batch)
    trainer.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("offload gradient")]


def two_layers() -> tuple[list[offload.Layer], dict[str, jax.Array], dict[str, jax.Array]]:
    def first(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        return batch["x"] @ params[0]

    def last(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        return jnp.mean((x @ params[0]) ** 2)

    applies: dict[str, Callable[..., jax.Array]] = {"a": first, "b": last}
    layers = [offload.Layer(name=name, apply=apply) for name, apply in applies.items()]
    return layers, {"a": jnp.ones((3, 4)), "b": jnp.ones((4, 1))}, {"x": jnp.ones((2, 3))}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("size", [0, 1, 511, 512, 30_000, 300_001])
def test_squares_of_any_number_of_numbers(size: int, dtype: str) -> None:
    optimizer = HostOptimizer(optax.sgd(0.1))
    x = np.random.default_rng(size).standard_normal(size).astype(jnp.dtype(dtype))
    tree = {"a": jnp.asarray(x), "b": jnp.full((2, 3), 2.0)}
    expected = float(np.sum(x.astype(np.float64) ** 2)) + 24
    assert optimizer.squares(tree) == pytest.approx(expected, rel=5e-7)
    wrong = (np.nan, np.inf) if dtype == "float16" else (np.nan, np.inf, 1e30)  # squared: infinite
    for place in {0, size // 2, size - 1} if size else ():
        for value in wrong:
            x_wrong = x.copy()
            x_wrong[place] = value
            assert not np.isfinite(optimizer.squares([jnp.asarray(x_wrong)]))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_norms_of_numbers_of_any_size(rng: np.random.Generator, dtype: str) -> None:
    """Also where their squares are none of their dtype, in arrays of more than one part."""
    optimizer, kind = HostOptimizer(optax.sgd(0.1)), jnp.finfo(dtype)
    for exponent in np.linspace(kind.minexp, kind.maxexp - 1, 6).astype(int).tolist():
        size = int(rng.integers(1, 200_000))
        x = np.ldexp(rng.uniform(0.5, 1, size), exponent).astype(jnp.dtype(dtype))
        wide = np.asarray(x, np.longdouble)
        expected = float(np.sqrt(np.sum(wide * wide)))
        assert optimizer.norm([jnp.asarray(x)]) == pytest.approx(expected, rel=5e-7)
        for wrong in (np.nan, np.inf):
            x[rng.integers(size)] = wrong
            assert not np.isfinite(optimizer.norm([jnp.asarray(x)]))
    assert optimizer.norm([jnp.zeros(3, dtype), jnp.zeros(0, dtype)]) == 0.0
    most = jnp.full(5, kind.max, dtype)  # beyond double precision
    assert np.isfinite(optimizer.norm([most])) == (dtype != "float64")
