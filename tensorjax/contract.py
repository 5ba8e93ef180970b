"""Contraction core: plan an einsum-like network once, run it anywhere.

`plan` finds the order in which to multiply the operands, counts what it costs, forward and
forward + backward, and slices it when it must fit into a given memory. The `Plan` is a
callable that works under `jax.jit`, `jax.vmap` and `jax.grad`.

    >>> import jax.numpy as jnp
    >>> from tensorjax import contract
    >>> p = contract.plan("ij,jk,kl->il", (8, 128), (128, 128), (128, 4))
    >>> p.path
    ((1, 2), (0, 1))
    >>> p.flops == 2 * 128 * 128 * 4 + 2 * 8 * 128 * 4
    True
    >>> p(jnp.ones((8, 128)), jnp.ones((128, 128)), jnp.ones((128, 4))).shape
    (8, 4)

What is counted. `Plan.flops` is in the unit of XLA's ``cost_analysis()["flops"]``: one per
multiplication or addition of the element type, so a complex multiply-add is 2, although it
is 8 real operations (`Plan.real_flops`). XLA counts the body of a loop once, so for a sliced
plan it reports about ``plan.flops / number of slices``. `Plan.grad` is the cost of
`jax.value_and_grad` or `jax.vjp` with respect to all operands, value included; where nothing
reads the value, XLA drops the last product.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _costs, _einsum, _execute, _paths, _slicing, _steps
from tensorjax._costs import Cost

__all__ = ["Cost", "Plan", "einsum", "plan"]


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A planned contraction: call it with arrays of the planned shapes.

    Arrays of another dtype than planned are accepted; the costs are those of the planned
    one. Plans are compared and hashed by identity.

    Attributes:
        expr: the expression, with ellipses expanded and the output explicit.
        shapes: shapes of the operands.
        shape: shape of the result.
        dtype: dtype of the result.
        path: order of the products as opt_einsum writes it.
        flops: operations of one call.
        bytes: bytes that all steps of one call read and write.
        peak_bytes: largest number of bytes alive at a time, operands and result included.
        grad: the same three for forward + backward, with respect to every operand of
            floating or complex dtype.
        real_flops: `flops` in operations on real numbers; larger for complex dtypes only.
        slices: number of slices of each sliced index; empty unless `memory_limit` asked for it.
        remat: whether a backward pass recomputes intermediates instead of keeping them.
        precision: precision of the products.
        preferred_element_type: type in which products are summed and returned, or None.
    """

    expr: str
    shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    path: tuple[tuple[int, ...], ...]
    flops: int
    bytes: int
    peak_bytes: int
    grad: Cost
    real_flops: int
    slices: Mapping[str, int]
    remat: bool
    precision: Any
    preferred_element_type: np.dtype | None
    _program: _execute.Program = dataclasses.field(repr=False)
    _call: Callable[..., jax.Array] = dataclasses.field(repr=False)

    def __call__(self, *arrays: Any) -> jax.Array:
        """Contracts arrays.

        Args:
            *arrays: one array per operand, of the planned shapes.

        Returns:
            The result, of shape `shape`.

        Raises:
            ValueError: if the number of arrays or a shape is not the planned one.
            TypeError: if an operand is not an array.
        """
        if len(arrays) != len(self.shapes):
            raise ValueError(
                f"operands: expected {len(self.shapes)} for {self.expr!r}, got {len(arrays)}"
            )
        for i, (x, shape) in enumerate(zip(arrays, self.shapes, strict=True)):
            if not _is_array(x):
                raise TypeError(
                    f"operand {i}: expected an array, got {type(x).__name__}; "
                    "shapes are for contract.plan, convert data by jnp.asarray"
                )
            if np.shape(x) != shape:
                raise ValueError(
                    f"operand {i}: expected shape {shape} as planned for {self.expr!r}, got "
                    f"{np.shape(x)}; make another plan for other shapes"
                )
        return self._call(*arrays)

    def table(self) -> str:
        """The products as a text table, one a line, with their operations and bytes."""
        return _table(self)

    def __str__(self) -> str:
        return self.table()


def plan(
    expr: Any,
    *operands: Any,
    dtype: Any = "float32",
    optimize: Any = "auto",
    minimize: str = "flops",
    memory_limit: int | None = None,
    limit_grad: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    merge_axes: bool = True,
) -> Plan:
    """Plans the contraction of a network of arrays.

    Plans are cached: the same expression, shapes, dtypes and options give the same object.

    Args:
        expr: subscripts as in `numpy.einsum`, for example ``"ij,jk->ik"``: explicit or implicit
            output, ``...``, repeated labels (diagonals), labels in any number of operands, and
            any letter or non-ASCII symbol (`opt_einsum.get_symbol`) as a label. NumPy's
            interleaved form ``plan(x, [0, 1], y, [1, 2], [0, 2])`` is understood too.
        *operands: for each operand an array, a tracer, a `jax.ShapeDtypeStruct` or a tuple of
            ints, its shape. Axes of size 1 stretch as in NumPy.
        dtype: dtype of operands that are given by a shape alone.
        optimize: ``"auto"`` (the cheapest of several searches), a strategy of opt_einsum
            such as ``"optimal"``, ``"greedy"`` or ``"dp"``, ``"cotengra"``, an explicit path
            (a list of tuples of positions, as opt_einsum and NumPy write it), or a callable as
            opt_einsum takes.
        minimize: what ``"auto"`` minimises: ``"flops"``, ``"bytes"`` or ``"peak"``.
        memory_limit: bytes that `Plan.peak_bytes` may not exceed. Indices are cut into slices
            until it holds, and intermediates are recomputed in the backward pass where keeping
            them would exceed it.
        limit_grad: whether `memory_limit` holds for forward + backward
            (`Plan.grad.peak_bytes`) as well.
        precision: as in `jax.lax.dot_general`.
        preferred_element_type: type in which products are summed and returned, intermediates
            included; None is the common type of the operands.
        merge_axes: whether factors are reshaped into matrices before they are multiplied, which
            saves copies. False leaves the axes to `jax.lax.dot_general`: for arrays sharded
            along an axis that is not the first of its group.

    Returns:
        The plan.

    Raises:
        ValueError: if the expression, shapes or options do not fit, or `memory_limit` cannot be
            reached.
        TypeError: if an argument has the wrong type.

    Example:
        >>> p = plan("ab,bc,cd->ad", (64, 64), (64, 64), (64, 64), memory_limit=80_000)
        >>> p.peak_bytes <= 80_000, len(p.slices)
        (True, 1)
    """
    if not isinstance(expr, str):
        expr, operands = _einsum.interleaved((expr, *operands))
    described = tuple(_describe(i, x, dtype) for i, x in enumerate(operands))
    network = _einsum.parse(expr, tuple(shape for shape, _, _ in described))
    # The promotion is meant, so it has to pass under JAX's strict promotion as well.
    with jax.numpy_dtype_promotion("standard"):
        common = np.dtype(jnp.result_type(*(kind for _, _, kind in described)))
    return _plan(
        network.expr,
        network.shapes,
        tuple(kind for _, kind, _ in described),
        common,
        _paths.check_strategy(optimize),
        _check_minimize(minimize),
        _check_limit(memory_limit),
        bool(limit_grad),
        _check_precision(precision),
        _check_preferred(preferred_element_type, common),
        bool(merge_axes),
    )


def einsum(expr: Any, *arrays: Any, **options: Any) -> jax.Array:
    """Contracts arrays: ``plan(expr, *arrays, **options)(*arrays)``.

    Args:
        expr: subscripts as in `plan`.
        *arrays: the operands.
        **options: keyword options of `plan`.

    Returns:
        The result.

    Raises:
        ValueError, TypeError: as `plan`.

    Example:
        >>> import jax.numpy as jnp
        >>> einsum("ij,j->i", jnp.ones((2, 3)), jnp.ones(3)).tolist()
        [3.0, 3.0]
    """
    if not isinstance(expr, str):
        expr, arrays = _einsum.interleaved((expr, *arrays))
    return plan(expr, *arrays, **options)(*arrays)


@functools.lru_cache(maxsize=1024)
def _plan(
    expr: str,
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[np.dtype, ...],
    common: np.dtype,
    strategy: _paths.Strategy,
    minimize: str,
    memory_limit: int | None,
    limit_grad: bool,
    precision: Any,
    preferred: np.dtype | None,
    merge_axes: bool,
) -> Plan:
    network = _einsum.parse(expr, shapes)
    result = preferred or common
    models = [
        _costs.Model(
            network=network,
            steps=_steps.build_steps(network, path),
            operand_sizes=tuple(dtype.itemsize for dtype in dtypes),
            common_size=common.itemsize,
            item_size=result.itemsize,
            sum_size=_execute.sum_dtype(result).itemsize,
            differentiable=tuple(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes),
        )
        for path in _search(network, strategy, minimize)
    ]
    model, slices = _fit(models, minimize, memory_limit, limit_grad)
    forward = _costs.forward_walk(model, slices)
    grad = _costs.gradient_walk(model, slices, remat=bool(slices)).cost()
    remat = memory_limit is not None and (bool(slices) or grad.peak_bytes > memory_limit)
    program = _execute.Program(model, slices, remat, precision, preferred, merge_axes)

    def contraction(*operands: jax.Array) -> jax.Array:
        return program(*operands)

    cost = forward.cost()
    complex_flops = 6 * forward.products + 2 * forward.sums
    path = tuple((step.left, step.right) for step in model.steps)
    return Plan(
        expr=network.expr,
        shapes=network.shapes,
        shape=network.output_shape,
        dtype=result,
        path=_paths.to_linear(path, len(shapes)),
        flops=cost.flops,
        bytes=cost.bytes,
        peak_bytes=cost.peak_bytes,
        grad=_costs.gradient_walk(model, slices, remat).cost(),
        real_flops=complex_flops if jnp.issubdtype(result, jnp.complexfloating) else cost.flops,
        slices=MappingProxyType(slices),
        remat=remat,
        precision=precision,
        preferred_element_type=preferred,
        _program=program,
        _call=jax.jit(contraction, inline=True),
    )


def _search(
    network: _einsum.Network, strategy: _paths.Strategy, minimize: str
) -> tuple[_paths.Path, ...]:
    """Paths for a network; labels are numbered so that renamed ones share the search."""
    numbers = {c: i for i, c in enumerate(dict.fromkeys("".join(network.reduced)))}
    return _paths.search(
        tuple(tuple(numbers[c] for c in term) for term in network.reduced),
        tuple(sorted(numbers[c] for c in network.reduced_output)),
        tuple(network.sizes[c] for c in numbers),
        strategy,
        "bytes" if minimize == "bytes" else "flops",
    )


def _fit(
    models: list[_costs.Model], minimize: str, limit: int | None, limit_grad: bool
) -> tuple[_costs.Model, dict[str, int]]:
    """Chooses among models, sliced where a limit demands it."""
    if limit is None:
        if minimize != "peak":
            return models[0], {}
        return min(models, key=lambda m: _costs.forward_walk(m, {}).cost()[::-1]), {}
    fitting, least = [], math.inf
    for model in models:
        try:
            slices = _slicing.choose(model, limit, limit_grad)
        except _slicing.Unreachable as error:
            least = min(least, error.least)
        else:
            cost = _costs.forward_walk(model, slices).cost()
            weight = cost[::-1] if minimize == "peak" else (getattr(cost, minimize),)
            fitting.append((weight, math.prod(slices.values()), len(fitting), model, slices))
    if not fitting:
        what = "forward + backward" if limit_grad else "a forward pass"
        raise ValueError(
            f"memory_limit: expected at least {least} bytes for {what} of "
            f"{models[0].network.expr!r}, got {limit}; operands and result alone need most of "
            "that, so raise memory_limit, use a smaller dtype or shard the operands"
        )
    return min(fitting)[3:]


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float | complex)


def _describe(index: int, x: Any, dtype: Any) -> tuple[tuple[int, ...], np.dtype, Any]:
    """Shape and dtype of an operand, and what stands for it in type promotion."""
    if isinstance(x, tuple) and all(isinstance(n, int | np.integer) and n >= 0 for n in x):
        kind = _dtype("dtype", dtype)
        return tuple(int(n) for n in x), kind, kind
    if isinstance(x, jax.ShapeDtypeStruct):
        kind = _dtype(f"operand {index}", x.dtype)
        return tuple(x.shape), kind, kind
    if _is_array(x):
        found = x.dtype if hasattr(x, "dtype") else jnp.result_type(x)
        return tuple(np.shape(x)), _dtype(f"operand {index}", found), x
    raise TypeError(
        f"operand {index}: expected an array, a jax.ShapeDtypeStruct or a shape (a tuple of "
        f"non-negative ints), got {x!r}; convert data by jnp.asarray"
    )


def _dtype(name: str, dtype: Any) -> np.dtype:
    """The dtype that JAX will use, if it is one of numbers."""
    try:
        found = jax.dtypes.canonicalize_dtype(dtype)
        if jnp.issubdtype(found, jnp.number) or found == jnp.bool_:
            return np.dtype(found)
    except TypeError:
        pass
    raise TypeError(f"{name}: expected a dtype of numbers such as 'float32', got {dtype!r}")


def _check_minimize(minimize: str) -> str:
    if minimize not in ("flops", "bytes", "peak"):
        raise ValueError(f"minimize: expected 'flops', 'bytes' or 'peak', got {minimize!r}")
    return minimize


def _check_limit(limit: Any) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float | np.integer | np.floating):
        raise TypeError(
            f"memory_limit: expected a number of bytes or None, got {type(limit).__name__}"
        )
    if not limit >= 1:
        raise ValueError(
            f"memory_limit: expected a positive number of bytes, got {limit}; None is no limit"
        )
    return None if limit == math.inf else int(limit)


def _check_precision(precision: Any) -> Any:
    """Lets JAX judge a precision, and makes it hashable."""
    if precision is None:
        return None
    precision = tuple(precision) if isinstance(precision, list) else precision
    vector = jax.ShapeDtypeStruct((1,), jnp.float32)
    try:
        jax.eval_shape(functools.partial(jnp.dot, precision=precision), vector, vector)
    except (TypeError, ValueError) as error:
        raise type(error)(f"precision: got {precision!r}. {error}") from error
    return precision


def _check_preferred(preferred: Any, common: np.dtype) -> np.dtype | None:
    if preferred is None:
        return None
    dtype = _dtype("preferred_element_type", preferred)
    loses = jnp.issubdtype(common, jnp.complexfloating) or jnp.issubdtype(common, jnp.floating)
    family = jnp.inexact if loses else jnp.number
    if jnp.issubdtype(common, jnp.complexfloating):
        family = jnp.complexfloating
    if not jnp.issubdtype(dtype, family):
        raise ValueError(
            f"preferred_element_type: expected a type that can hold {common}, got {dtype}; "
            "take the real part or round the operands first"
        )
    return dtype


def _table(plan: Plan) -> str:
    rows = [("step", "reads", "product", "flops", "bytes")]
    for node, reads, text, flops, moved in _costs.breakdown(plan._program.model, plan.slices):
        rows.append((node, reads, text, f"{flops:.3g}", f"{moved:.3g}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    cuts = ", ".join(f"{label} in {count}" for label, count in plan.slices.items()) or "none"
    lines += [
        f"forward             {_describe_cost(plan.flops, plan.bytes, plan.peak_bytes)}",
        f"forward + backward  {_describe_cost(*plan.grad)}",
        f"slices: {cuts}; {'rematerialised' if plan.remat else 'not rematerialised'}",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _describe_cost(flops: int, moved: int, peak: int) -> str:
    return f"{flops:.3g} flops, {moved:.3g} bytes moved, {peak:.3g} bytes at the peak"
