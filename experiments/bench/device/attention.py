"""Part "attention" of `bench/device`: cuDNN's fused attention beside XLA's and PyTorch's."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench._solving import found
from experiments.bench.device import machine
from experiments.bench.device.rows import Budget, Case, Emit, LeftOut, run_cases
from tensorjax.models.gpt2._attention import attend

Shape = tuple[int, int, int, int]  # batch, length, heads, width
SHAPES: tuple[Shape, ...] = ((16, 1024, 12, 64), (4, 4096, 16, 128), (1, 16384, 16, 128))
_LONGEST = 4096  # of unfused attention, which stores all scores, and of the reference


def run(budget: Budget, emit: Emit) -> None:
    """Times attention, forward and with gradients, at several shapes."""
    shapes = ((2, 16, 2, 8),) if budget.tiny else SHAPES
    for shape in shapes:
        run_cases(cases(shape, 0.02 if budget.tiny else 0.3), budget, emit)


def cases(shape: Shape, seconds: float) -> list[Case]:
    """Returns the ways to compute attention of one shape, as cases."""
    b, length, heads, width = shape
    rng = np.random.default_rng(0)
    wide = [rng.standard_normal(shape, np.float32) for _ in range(4)]
    flops = 2.0 * b * heads * width * length**2  # two products, of which half is masked
    ways: dict[str, Callable[..., dict[str, Any]]] = {
        "tensorjax, cuDNN": functools.partial(_jax, "cudnn", wide),
        "tensorjax, default": functools.partial(_jax, None, wide),
        "torch, scaled_dot_product_attention": functools.partial(_torch, wide),
    }
    if length > _LONGEST:
        del ways["tensorjax, default"]

    def find(way: Callable[..., Any], backward: bool) -> dict[str, Any]:
        row = way(backward, seconds=seconds)
        work = flops * (3.5 if backward else 1.0)  # five products backwards
        return {"TFLOP/s": work / row["ms"] / 1e9, **row}

    label = f"{b} × {length}, {heads} heads of {width}"
    return [
        (f"{label}, {'forward + backward' if backward else 'forward'}, {name}",
         lambda way=way, backward=backward: find(way, backward))
        for backward in (False, True)
        for name, way in ways.items()
    ]  # fmt: skip


def _jax(
    implementation: str | None, wide: list[np.ndarray], backward: bool, seconds: float
) -> dict[str, Any]:
    if implementation == "cudnn" and jax.default_backend() != "gpu":
        raise LeftOut("no GPU: there is no cuDNN")

    def forward(q: Any, k: Any, v: Any, g: Any = None) -> Any:
        return attend(q, k, v, implementation, is_causal=True)

    def both(q: Any, k: Any, v: Any, g: Any) -> Any:
        y, pull = jax.vjp(lambda q, k, v: forward(q, k, v), q, k, v)
        return y, pull(g)

    arrays = [jnp.asarray(x, jnp.bfloat16) for x in wide]
    call = jax.jit(both if backward else forward)
    row = {"ms": 1e3 * machine.median(call, *arrays, seconds=seconds)}
    result = jax.tree.leaves(call(*arrays))
    return {**row, **_errors([np.asarray(x, np.float32) for x in result], wide)}


def _torch(wide: list[np.ndarray], backward: bool, seconds: float) -> dict[str, Any]:
    torch = found("torch")
    if torch is None:
        raise ModuleNotFoundError(name="torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v, g = (
        torch.tensor(x, dtype=torch.bfloat16, device=device).transpose(1, 2) for x in wide
    )
    inputs = [x.detach().requires_grad_(backward) for x in (q, k, v)]

    def call() -> Any:
        y = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
        out = (y, *torch.autograd.grad(y, inputs, g)) if backward else (y,)
        if device == "cuda":
            torch.cuda.synchronize()
        return out

    row = {"ms": 1e3 * machine.median(call, seconds=seconds)}
    result = [x.detach().transpose(1, 2).float().cpu().numpy() for x in call()]
    return {**row, **_errors(result, wide)}


def _errors(result: list[np.ndarray], wide: list[np.ndarray]) -> dict[str, Any]:
    """Computes the largest relative error of attention's output and gradients.

    Beside single precision by XLA.
    """
    if wide[0].shape[1] > _LONGEST:
        return {"error": None}
    exact = _exact(*(x.tobytes() for x in wide), shape=wide[0].shape)
    errors = (np.linalg.norm(a - b) / np.linalg.norm(b)
              for a, b in zip(result, exact, strict=False))  # fmt: skip
    return {"error": float(max(errors))}


@functools.lru_cache(maxsize=1)
def _exact(*raw: bytes, shape: Shape) -> list[np.ndarray]:
    """Computes attention's output and gradients in float32, one sequence at a time."""
    rounded = [jnp.asarray(np.frombuffer(x, np.float32).reshape(shape), jnp.bfloat16) for x in raw]
    q, k, v, g = (x.astype(jnp.float32) for x in rounded)

    def one(rows: Any) -> Any:
        *inputs, g = (x[None] for x in rows)

        def forward(q: Any, k: Any, v: Any) -> Any:
            return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")

        y, pull = jax.vjp(forward, *inputs)
        return [x[0] for x in (y, *pull(g))]

    with jax.default_matmul_precision("highest"):
        return [np.asarray(x) for x in jax.jit(lambda *x: jax.lax.map(one, x))(q, k, v, g)]
