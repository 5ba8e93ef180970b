"""Plans of contractions (order of products, costs, execution), and `einsum` by a plan."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tensorjax import _check, _other_names, _symbolic
from tensorjax._placement import by_axes, placed_by
from tensorjax._typing import ArrayLike, DTypeLike, HostArray, PrecisionLike
from tensorjax.contract import _argument_checks, _costs, _pairwise_products, _paths, _plan_execution
from tensorjax.contract import _einsum_parser as syntax
from tensorjax.contract._costs import Cost, table
from tensorjax.contract._pairwise_products import Model
from tensorjax.contract._paths import network_paths
from tensorjax.contract._slicing import fit


def _by_labels(out: Any, arguments: Any) -> list[Any]:
    """Returns the sharding of a planned contraction's result: each axis as in the operands.

    An axis is sharded as that of the first operand that has its label sharded.
    """
    (plan, *arrays), _ = arguments
    terms = list(zip(arrays, plan._program.model.network.terms, strict=True))
    sources = (
        [(x, axis) for x, term in terms for axis, c in enumerate(term) if c == label]
        for label in plan._program.model.network.output
    )
    return [by_axes(out.shape, list(sources))]


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Planned contraction, callable with arrays of the planned shapes, with its costs.

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
      residual_bytes: bytes that the forward pass leaves to the backward one, beside the
        operands and the result.
      real_flops: `flops` in operations on real numbers; larger for complex dtypes only.
      slices: number of slices of each sliced index; empty unless `memory_limit` asked for it.
      remat: whether a backward pass recomputes intermediates instead of keeping them.
      precision: precision of the products.
      preferred_element_type: type in which products are summed and returned, or None.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import contract
      >>> p = contract.plan("ij,jk->ik", (2, 3), (3, 4))
      >>> p.flops, p(jnp.ones((2, 3)), jnp.ones((3, 4))).shape
      (48, (2, 4))

    Source: ours; see `plan`.
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
    residual_bytes: int
    real_flops: int
    slices: Mapping[str, int]
    remat: bool
    precision: PrecisionLike
    preferred_element_type: np.dtype | None
    _program: _plan_execution.Program = dataclasses.field(repr=False)
    _call: Callable[..., jax.Array] = dataclasses.field(repr=False)

    def __copy__(self) -> "Plan":
        return self  # frozen, and known by its identity

    def __deepcopy__(self, memo: Any) -> "Plan":
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Neither a read-only view nor a compiled function can be pickled.
        kept = {k: v for k, v in vars(self).items() if k != "_call"}
        return {**kept, "slices": dict(self.slices)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        called = {"slices": MappingProxyType(state["slices"]), "_call": _call(state["_program"])}
        for name, value in {**state, **called}.items():
            object.__setattr__(self, name, value)

    @placed_by(_by_labels)
    def __call__(self, *arrays: ArrayLike) -> jax.Array:
        """Contracts arrays of the planned shapes by the plan.

        Args:
          *arrays: one array per operand, of the planned shapes. Sizes that are symbolic
            (`jax.export.symbolic_shape`) go with a plan for 1024 in their place.

        Returns:
          The result, of shape `shape`.

        Raises:
          ValueError: if the number of arrays or a shape is not the planned one.
          TypeError: if an operand is not an array.
        """
        self._check(arrays)
        found = tuple(map(np.shape, arrays))
        given: tuple[Any, ...] = arrays
        return self._call(*given) if found == self.shapes else self._symbolic(found)(*given)

    def on_host(self, *arrays: HostArray) -> np.ndarray:
        """Contracts NumPy arrays of the planned shapes by the plan on the host, uncompiled.

        Args:
          *arrays: as of a call, concrete.

        Returns:
          NumPy array of shape `shape` and the dtype that a call returns.

        Raises:
          ValueError: if the number of arrays or a shape is not the planned one.
          TypeError: if an operand is not an array, or is traced.

        Example:
          >>> import numpy as np
          >>> from tensorjax import contract
          >>> p = contract.plan("ij,jk->ik", (2, 3), (3, 2))
          >>> p.on_host(np.ones((2, 3)), np.ones((3, 2))).sum()
          np.float32(12.0)
        """
        for i, x in enumerate(arrays):
            if isinstance(x, Tracer):
                raise TypeError(
                    f"operand {i}: expected a concrete array, got one that is traced; call the "
                    "plan itself under jit, vmap and grad"
                )
        self._check(arrays)
        with jax.numpy_dtype_promotion("standard"):
            dtype = self.preferred_element_type or jnp.result_type(*arrays)
        wide = np.dtype(_plan_execution.sum_dtype(dtype))
        found = [np.asarray(x) for x in arrays]
        return np.asarray(
            _plan_execution.run_on_host(self._program.model, self.slices, found, wide), dtype
        )

    def _check(self, arrays: tuple[Any, ...]) -> None:
        if len(arrays) != len(self.shapes):
            raise ValueError(
                f"operands: expected {len(self.shapes)} for {self.expr!r}, got {len(arrays)}; "
                "pass one array per operand"
            )
        for i, (x, shape) in enumerate(zip(arrays, self.shapes, strict=True)):
            if not _argument_checks.is_array(x):
                raise TypeError(
                    f"operand {i}: expected an array, got {type(x).__name__}; "
                    "shapes are for contract.plan, convert data by jnp.asarray"
                )
            if np.shape(x) != shape and tuple(map(_symbolic.planned, np.shape(x))) != shape:
                raise ValueError(
                    f"operand {i}: expected shape {shape} as planned for {self.expr!r}, got "
                    f"{np.shape(x)}; make another plan for other shapes"
                )
            _check.unmasked(f"operand {i}", x)
            _check.representable(f"operand {i}", x)
        weak = [i for i, x in enumerate(arrays) if type(x) in (int, float, complex)]
        if weak:
            self._check_weak(weak, arrays)

    def _check_weak(self, weak: list[int], arrays: tuple[Any, ...]) -> None:
        """Checks that a planned contraction's Python numbers fit the operands' common dtype."""
        with jax.numpy_dtype_promotion("standard"):
            common = jnp.result_type(*arrays)
        if not jnp.issubdtype(common, jnp.inexact):
            return  # JAX raises for an integer beyond its own
        for i in weak:
            kind = np.complex128 if isinstance(arrays[i], complex) else np.float64
            _check.representable(f"operand {i}", np.asarray(arrays[i], kind), common)

    def _symbolic(self, shapes: tuple[tuple[Any, ...], ...]) -> _plan_execution.Program:
        """Returns a contraction plan's program for symbolic sizes (`jax.export`)."""
        if self.slices or self.remat:
            raise _symbolic.no_limit(shapes)
        model = self._program.model
        network = syntax.parse(self.expr, shapes)
        model = dataclasses.replace(model, network=network)
        return dataclasses.replace(self._program, model=model)

    def table(self) -> str:
        """Formats a plan as a text table: its order of products, with operations and bytes.

        Returns:
          Text of several lines, the costs of forward and forward + backward at its end.
        """
        return table(self)

    def __str__(self) -> str:
        return self.table()


def plan(
    expr: Any,
    *operands: Any,
    dtype: DTypeLike = "float32",
    optimize: Any = "auto",
    seconds: float | None = None,
    minimize: str = "flops",
    memory_limit: int | None = None,
    limit_grad: bool = False,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    merge_axes: bool = True,
) -> Plan:
    """Plans the contraction of a network of arrays: order of products, cost, and slices.

    Plans are cached: the same expression, shapes, dtypes and options give the same object.

    Args:
      expr: subscripts as in `numpy.einsum`, for example ``"ij,jk->ik"``: explicit or implicit
        output, ``...`` (summed over where an explicit output lacks it, as in `jax.numpy`, where
        NumPy raises an error), repeated labels (diagonals), labels in any number of operands,
        and any letter or non-ASCII symbol (`opt_einsum.get_symbol`) as a label. NumPy's
        interleaved form ``plan(x, [0, 1], y, [1, 2], [0, 2])`` is understood too.
      *operands: for each operand an array, a tracer, a `jax.ShapeDtypeStruct` or a tuple of
        ints, its shape. Axes of size 1 stretch as in NumPy.
      dtype: dtype of operands that are given by a shape alone.
      optimize: ``"auto"`` (the cheapest of several searches), a strategy of opt_einsum
        such as ``"optimal"``, ``"greedy"`` or ``"dp"``, ``"cotengra"``, an explicit path
        (a list of tuples of positions, as opt_einsum and NumPy write it), or a callable as
        opt_einsum takes.
      seconds: time that ``"auto"`` may take, about. It is counted in steps of the search, so
        that all processes of a program find the same order. None is one second, and, where the
        order found takes longer than that to run at 10 Gflop/s, a second search as long as it
        runs, up to 30; searches over fewer than twelve operands then run to their end.
      minimize: what ``"auto"`` minimises: ``"flops"``, ``"bytes"`` or ``"peak"``.
      memory_limit: bytes that `Plan.peak_bytes` may not exceed; None for no limit. Indices are cut
        into slices until it holds, and intermediates are recomputed in the backward pass where
        keeping them would exceed it.
      limit_grad: whether `memory_limit` holds for forward + backward
        (`Plan.grad.peak_bytes`) as well.
      precision: as in `jax.lax.dot_general`.
      preferred_element_type: type in which products are summed and returned, intermediates
        included; None is the common type of the operands.
      merge_axes: whether factors are reshaped into matrices before they are multiplied, which
        saves copies. Set it to False for arrays that are sharded along an inner axis, say
        the sequence axis of (batch, sequence, features): merging would gather them. Axes
        sharded in JAX's explicit mode are never merged. The costs are those of merged axes.

    Returns:
      `Plan`, a callable for arrays of these shapes.

    Raises:
      ValueError: if the expression, shapes or options do not fit, or `memory_limit` cannot be
        reached.
      TypeError: if an argument has the wrong type.

    Example:
      >>> from tensorjax import contract
      >>> p = contract.plan("ab,bc,cd->ad", (64, 64), (64, 64), (64, 64), memory_limit=80_000)
      >>> p.peak_bytes <= 80_000, len(p.slices)
      (True, 1)

    Source: D. Smith, J. Gray, "opt_einsum", J. Open Source Softw. 3 (2018), for the strategies
    named after it; J. Gray, S. Kourtis, "Hyper-optimized tensor network contraction", Quantum 5,
    410 (2021), for re-ordered subtrees and slices. Ours: the costs of forward + backward, and the
    limit on them.
    """
    if not isinstance(expr, str):
        expr, operands = syntax.interleaved((expr, *operands))
    described = tuple(_argument_checks.describe(i, x, dtype) for i, x in enumerate(operands))
    network = syntax.parse(expr, tuple(shape for shape, _, _ in described))
    # The promotion is meant, so it has to pass under JAX's strict promotion as well.
    with jax.numpy_dtype_promotion("standard"):
        common = np.dtype(jnp.result_type(*(kind for _, _, kind in described)))
    return _plan(
        network.expr,
        network.shapes,
        tuple(kind for _, kind, _ in described),
        common,
        _argument_checks.check_strategy(optimize),
        _argument_checks.check_seconds(seconds),
        _argument_checks.check_minimize(minimize),
        _argument_checks.check_limit(memory_limit, limit_grad),
        bool(limit_grad),
        _argument_checks.check_precision(precision),
        _argument_checks.check_preferred(preferred_element_type, common),
        bool(merge_axes),
    )


# `plan` knows of a dtype for shapes alone, which `einsum` has not: it would be ignored.
_EINSUM_OPTIONS = {
    name
    for name, p in inspect.signature(plan).parameters.items()
    if p.kind is p.KEYWORD_ONLY and name != "dtype"
}


def einsum(expr: Any, *arrays: Any, **options: Any) -> jax.Array:
    """Plans and contracts arrays by an einsum expression.

    Symbolic sizes (`jax.export.symbolic_shape`) are planned as 1024.

    Args:
      expr: subscripts as in `plan`.
      *arrays: the operands.
      **options: keyword options of `plan`, but ``dtype``: that is the operands' own.

    Returns:
      The result, a JAX array.

    Raises:
      ValueError: if the expression, shapes or options do not fit.
      TypeError: if an argument has the wrong type, or is an option of `numpy.einsum` alone.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import contract
      >>> contract.einsum("ij,j->i", jnp.ones((2, 3)), jnp.ones(3)).tolist()
      [3.0, 3.0]

    Source: the expressions are NumPy's; the order of products is that of `plan`.
    """
    for name in options:
        if name not in _EINSUM_OPTIONS:
            error = TypeError(f"einsum() got an unexpected keyword argument {name!r}")
            _other_names.explain("einsum", _EINSUM_OPTIONS, options, error)
            raise error
    if not isinstance(expr, str):
        expr, arrays = syntax.interleaved((expr, *arrays))
    described = [_symbolic.like(x) for x in arrays]
    open_sizes = any(a is not b for a, b in zip(described, arrays, strict=True))
    if open_sizes and options.get("memory_limit") is not None:
        raise _symbolic.no_limit([np.shape(x) for x in arrays])
    return plan(expr, *described, **options)(*arrays)


@functools.lru_cache(maxsize=1024)
def _plan(
    expr: str,
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[np.dtype, ...],
    common: np.dtype,
    strategy: _argument_checks.Strategy,
    seconds: float | None,
    minimize: str,
    memory_limit: int | None,
    limit_grad: bool,
    precision: Any,
    preferred: np.dtype | None,
    merge_axes: bool,
) -> Plan:
    network = syntax.parse(expr, shapes)
    result = preferred or common
    models = [
        Model(
            network=network,
            steps=_pairwise_products.build_steps(network, path),
            operand_sizes=tuple(dtype.itemsize for dtype in dtypes),
            common_size=common.itemsize,
            item_size=result.itemsize,
            sum_size=_plan_execution.sum_dtype(result).itemsize,
            differentiable=tuple(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes),
        )
        for path in network_paths(network, strategy, minimize, seconds)
    ]
    model, slices = fit(models, minimize, memory_limit, limit_grad)
    forward = _costs.forward_walk(model, slices)
    grad = _costs.gradient_walk(model, slices, remat=False)
    remat = memory_limit is not None and (bool(slices) or grad.cost().peak_bytes > memory_limit)
    if remat:
        grad = _costs.gradient_walk(model, slices, remat=True)
    program = _plan_execution.Program(model, slices, remat, precision, preferred, merge_axes)
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
        grad=grad.cost(),
        residual_bytes=grad.residual,
        real_flops=complex_flops if jnp.issubdtype(result, jnp.complexfloating) else cost.flops,
        slices=MappingProxyType(slices),
        remat=remat,
        precision=precision,
        preferred_element_type=preferred,
        _program=program,
        _call=_call(program),
    )


def _call(program: _plan_execution.Program) -> Callable[..., jax.Array]:
    def contraction(*operands: jax.Array) -> jax.Array:
        return program(*operands)

    return jax.jit(contraction, inline=True)
