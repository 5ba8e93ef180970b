"""Every function with static shapes: what it is called with, and what it does to dense arrays.

`tests/test_tt_contract_table.py` runs them; so does `experiments.bench.device` on an accelerator.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import convert, tt, tucker
from tests.oracles import cores, dense, norm, normal, tucker_dense, wide

Operands = dict[str, Any]
CASES = {"ordinary": ((2, 3, 4), 2), "order 1": ((3,), 1), "rank 1": ((2, 1, 3, 2), 1)}


class Row(NamedTuple):
    """A function of the operands, and the same on dense arrays (None: it loses accuracy)."""

    call: Callable[[Operands], Any]
    exact: Callable[[dict[str, np.ndarray]], Any] | None


def operands(rng: np.random.Generator, case: str, dtype: Any) -> Operands:
    shape, rank = CASES[case]
    square = [c.reshape(len(c), n, n, -1) for c, n in
              zip(cores(rng, [n * n for n in shape], rank, dtype), shape, strict=True)]  # fmt: skip
    made = {
        "x": tt.TT(cores(rng, shape, rank, dtype)),
        "y": tt.TT(cores(rng, shape, 1, dtype)),
        "a": tt.TTMatrix(square),
        "v": normal(rng, shape[:1]).astype(dtype),
        "s": normal(rng, ()).astype(dtype),
    }
    # Of full rank: where more is kept than there is, a factorisation has no derivative.
    made["z"] = normal(rng, shape, dtype)
    made["w"] = normal(rng, (math.prod(shape),) * 2, dtype)
    # Tucker tensors, with a train core and with a dense one; the factors are not orthonormal.
    factors = [normal(rng, (n + 1, n)).astype(dtype) for n in shape]
    made["t"] = tucker.Tucker(made["x"], factors)
    made["u"] = tucker.Tucker(made["z"], factors)
    return jax.tree.map(jnp.asarray, made)


def densified(made: Operands) -> dict[str, np.ndarray]:
    return {k: wide(as_array(m, np)) for k, m in made.items()}


def _index(x: Any) -> np.ndarray:
    """Three multi-indices, one of them counted from the end."""
    return np.array([[0] * x.order, [n - 1 for n in x.shape], [-1] * x.order])


def _shape(z: Any) -> tuple[int, ...]:
    return tuple(z.shape)


def _rounding(**options: Any) -> Callable[[Operands], Any]:
    return lambda o: tt.round(o["x"] + o["y"], **options)


def _sum(o: dict[str, np.ndarray]) -> Any:
    return o["x"] + o["y"]


def _tucker_sum(o: dict[str, np.ndarray]) -> Any:
    return o["t"] + o["u"]


def _tucker_inner(o: dict[str, np.ndarray]) -> Any:
    return np.vdot(o["u"], o["t"])


TABLE: dict[str, Row] = {
    "to_dense": Row(lambda o: tt.to_dense(o["x"]), lambda o: o["x"]),
    "to_dense of a matrix": Row(lambda o: tt.to_dense(o["a"]), lambda o: o["a"]),
    "add": Row(lambda o: tt.add(o["x"], o["y"]), _sum),
    "scale": Row(lambda o: tt.scale(o["x"], o["s"]), lambda o: o["s"] * o["x"]),
    "conj": Row(lambda o: tt.conj(o["x"]), lambda o: o["x"].conj()),
    "real": Row(lambda o: tt.real(o["x"]), lambda o: o["x"].real),
    "imag": Row(lambda o: tt.imag(o["x"]), lambda o: o["x"].imag),
    "imag of a matrix": Row(lambda o: tt.imag(o["a"]), lambda o: o["a"].imag),
    "divide": Row(lambda o: o["x"] / o["s"], lambda o: o["x"] / o["s"]),
    "subtract a scalar": Row(lambda o: o["x"] - o["s"], lambda o: o["x"] - o["s"]),
    "hadamard": Row(lambda o: tt.hadamard(o["x"], o["y"]), lambda o: o["x"] * o["y"]),
    "inner": Row(lambda o: tt.inner(o["x"], o["y"]), lambda o: np.vdot(o["x"], o["y"])),
    "norm": Row(lambda o: tt.norm(o["x"]), lambda o: norm(o["x"])),
    "log_norm": Row(lambda o: tt.log_norm(o["x"]), lambda o: np.log(norm(o["x"]))),
    "normalize": Row(lambda o: tt.normalize(o["x"]), lambda o: o["x"] / norm(o["x"])),
    "norm of a matrix": Row(lambda o: tt.norm(o["a"]), lambda o: norm(o["a"])),
    "distance": Row(lambda o: tt.distance(o["x"], o["y"]), lambda o: norm(o["x"] - o["y"])),
    "matvec": Row(
        lambda o: tt.matvec(o["a"], o["x"]),
        lambda o: (o["a"] @ o["x"].ravel()).reshape(o["x"].shape),
    ),
    "matmul": Row(lambda o: tt.matmul(o["a"], o["a"]), lambda o: o["a"] @ o["a"]),
    "transpose": Row(lambda o: tt.transpose(o["a"]), lambda o: o["a"].T),
    "kron": Row(lambda o: tt.kron(o["x"], o["y"]), lambda o: np.multiply.outer(o["x"], o["y"])),
    "evaluate": Row(
        lambda o: tt.evaluate(o["x"], _index(o["x"])),
        lambda o: np.array([o["x"].flat[0], o["x"].flat[-1], o["x"].flat[-1]]),
    ),
    "contract_modes": Row(
        lambda o: tt.contract_modes(o["x"], {0: o["v"]}),
        lambda o: np.tensordot(o["v"], o["x"], (0, 0)),
    ),
    "concatenate": Row(
        lambda o: tt.concatenate([o["x"], o["y"]], axis=-1),
        lambda o: np.concatenate([o["x"], o["y"]], axis=-1),
    ),
    "rank_one": Row(
        lambda o: tt.rank_one([o["v"], o["v"]]), lambda o: np.multiply.outer(o["v"], o["v"])
    ),
    "pad": Row(lambda o: tt.pad(o["x"], 3), lambda o: o["x"]),
    "orthogonalize": Row(lambda o: tt.orthogonalize(o["x"], 0), lambda o: o["x"]),
    "round at full rank": Row(_rounding(rank=3), _sum),
    "round with tol": Row(_rounding(rank=3, tol=0.1), None),
    "round": Row(_rounding(rank=1), None),
    "round by svd": Row(_rounding(rank=1, method="svd"), None),
    "round by gram": Row(_rounding(rank=1, method="gram"), None),
    "round by sketch": Row(_rounding(rank=1, method="randomized"), None),
    "round a matrix": Row(lambda o: tt.round(o["a"] + o["a"], rank=2), lambda o: 2 * o["a"]),
    "from_dense at full rank": Row(lambda o: tt.from_dense(o["z"], rank=9), lambda o: o["z"]),
    "from_dense with tol": Row(lambda o: tt.from_dense(o["z"], rank=2, tol=0.1), None),
    "from_dense": Row(lambda o: tt.from_dense(o["z"], rank=1), None),
    "from_dense by svd": Row(lambda o: tt.from_dense(o["z"], rank=1, method="svd"), None),
    "from_dense by sketch": Row(lambda o: tt.from_dense(o["z"], rank=1, method="randomized"), None),
    "matrix_from_dense": Row(
        lambda o: tt.matrix_from_dense(o["w"], _shape(o["x"]), _shape(o["x"]), rank=99),
        lambda o: o["w"],
    ),
    "tucker.from_dense": Row(lambda o: tucker.from_dense(o["z"], rank=1), None),
    "tucker.from_dense with tol": Row(lambda o: tucker.from_dense(o["z"], rank=2, tol=0.1), None),
    "tucker.to_dense": Row(lambda o: tucker.to_dense(o["u"]), lambda o: o["u"]),
    "tucker.add of trains": Row(lambda o: tucker.add(o["t"], o["t"]), lambda o: 2 * o["t"]),
    "tucker.add": Row(lambda o: tucker.add(o["u"], o["t"]), _tucker_sum),
    "tucker.real": Row(lambda o: tucker.real(o["u"]), lambda o: o["u"].real),
    "tucker.imag of a train": Row(lambda o: tucker.imag(o["t"]), lambda o: o["t"].imag),
    "tucker.inner": Row(lambda o: tucker.inner(o["u"], o["t"]), _tucker_inner),
    "tucker.norm": Row(lambda o: tucker.norm(o["t"]), lambda o: norm(o["t"])),
    "tucker.distance": Row(
        lambda o: tucker.distance(o["u"], o["t"]), lambda o: norm(o["u"] - o["t"])
    ),
    "tucker.evaluate": Row(
        lambda o: tucker.evaluate(o["u"], _index(o["u"])), lambda o: o["u"].ravel()[[0, -1, -1]]
    ),
    "tucker.evaluate of a train": Row(
        lambda o: tucker.evaluate(o["t"], _index(o["t"])), lambda o: o["t"].ravel()[[0, -1, -1]]
    ),
    "tucker.round": Row(lambda o: tucker.round(o["u"], rank=1), None),
    "tucker.round of a train": Row(lambda o: tucker.round(o["t"], rank=1, core_rank=1), None),
    "tt_to_tucker": Row(lambda o: convert.tt_to_tucker(o["x"], rank=1)[0], None),
    "tt_to_tucker with tol": Row(lambda o: convert.tt_to_tucker(o["x"], rank=2, tol=0.1)[0], None),
}


def as_array(out: Any, xp: Any) -> Any:
    """The dense array that a result stands for."""
    if isinstance(out, tt.TT | tt.TTMatrix):
        return tt.to_dense(out) if xp is jnp else dense(out)
    if isinstance(out, tucker.Tucker):
        return tucker.to_dense(out) if xp is jnp else tucker_dense(out)
    return out


def weighted(out: Any, xp: Any) -> Any:
    """A real number with another weight for every entry's real and imaginary part."""
    out = xp.asarray(out)
    index = np.arange(out.size).reshape(out.shape)
    return xp.sum(xp.real(out) * np.cos(index + 1.0)) + xp.sum(xp.imag(out) * np.sin(index + 1.0))
