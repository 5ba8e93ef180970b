"""Executors of a planned contraction: `jax.lax` operations in a program, and NumPy on the host.

In a program every product is one `jax.lax.dot_general`, so that XLA sees batched matrix products
and nothing else. Slices are taken inside `jax.lax.scan`; the body of the scan is a
`jax.checkpoint`, so that the backward pass keeps the operands and no intermediate of any slice.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax.contract._einsum_parser import Network
from tensorjax.contract._pairwise_products import Model, Slices, Step, levels, looped


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Executor of a planned contraction: pairwise products in order, slices, precision, remat.

    Attributes:
        model: the contraction and the order of its products.
        slices: number of slices of each sliced label.
        remat: whether the backward pass recomputes intermediates instead of keeping them.
        precision: precision of the products.
        preferred_element_type: type in which products are summed and returned.
        merge_axes: whether factors are reshaped into matrices before they are multiplied.
    """

    model: Model
    slices: Slices
    remat: bool
    precision: Any
    preferred_element_type: Any
    merge_axes: bool

    def __call__(self, *operands: jax.Array) -> jax.Array:
        """Executes a planned contraction on operands whose shapes were checked before."""
        run = self._sliced if self.slices else self._whole
        if self.remat and not self.slices:
            run = jax.checkpoint(run)
        return run(*self._promoted(operands))

    def _promoted(self, operands: Sequence[jax.Array]) -> list[jax.Array]:
        # The promotion is meant, so it has to pass under JAX's strict promotion as well.
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*operands)
        return [jnp.asarray(x).astype(dtype) for x in operands]

    def _whole(self, *operands: jax.Array) -> jax.Array:
        values = {i: self._reduced(i, x) for i, x in enumerate(operands)}
        self._run(values, self._nodes(inside=False))
        result = self._ordered(values).reshape(self.model.network.output_shape)
        if self.preferred_element_type is not None:
            result = result.astype(self.preferred_element_type)
        return result

    def _reduced(self, operand: int, x: jax.Array) -> jax.Array:
        """Reduces an operand before its first product is executed: size-1 axes, diagonals, sums."""
        network = self.model.network
        labels = network.squeezed(operand)
        if x.dtype == jnp.bool_ and self.preferred_element_type is not None:
            x = x.astype(self.preferred_element_type)  # booleans are counted, as sums are asked for
        x = x.reshape([n for n in network.shapes[operand] if n != 1])
        for label in dict.fromkeys(labels):
            x, labels = _diagonal(x, labels, label)
        kept = network.reduced[operand]
        axes = tuple(i for i, label in enumerate(labels) if label not in kept)
        if axes:
            x = self._sum(x, axes)
            labels = "".join(label for label in labels if label in kept)
        return lax.transpose(x, [labels.index(label) for label in kept])

    def _sum(self, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
        if x.dtype == jnp.bool_:
            return jnp.any(x, axes)  # without a preferred type, as NumPy's einsum
        return jnp.sum(x, axes, dtype=self.preferred_element_type or x.dtype)

    def _labels(self, node: int, thin: frozenset[str] = frozenset()) -> str:
        n = len(self.model.network.reduced)
        reduced, steps = self.model.network.reduced, self.model.steps
        labels = reduced[node] if node < n else steps[node - n].labels
        return "".join(label for label in labels if label not in thin)

    def _output(self, thin: frozenset[str]) -> str:
        return "".join(c for c in self.model.network.reduced_output if c not in thin)

    def _nodes(self, inside: bool) -> list[int]:
        """Returns the products to execute inside or outside the loop over slices, by number."""
        n = len(self.model.network.reduced)
        depends = looped(self.model, self.slices)
        return [n + k for k in range(len(self.model.steps)) if (n + k in depends) == inside]

    def _run(
        self,
        values: dict[int, jax.Array],
        nodes: list[int],
        thin: frozenset[str] = frozenset(),
    ) -> None:
        """Executes the pairwise products ``nodes`` of a contraction in place of their factors."""
        n = len(self.model.network.reduced)
        for node in nodes:
            step = self.model.steps[node - n]
            left, right = values.pop(step.left), values.pop(step.right)
            values[node] = self._product(step.without(thin), left, right)

    def _ordered(
        self, values: dict[int, jax.Array], thin: frozenset[str] = frozenset()
    ) -> jax.Array:
        """Returns an executed contraction's value, transposed to the output's axis order."""
        ((root, value),) = values.items()
        labels = self._labels(root, thin)
        return lax.transpose(value, [labels.index(label) for label in self._output(thin)])

    def _product(self, step: Step, left: jax.Array, right: jax.Array) -> jax.Array:
        # Factors differ in type only where an intermediate has the preferred type.
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(left, right)
        left, right = left.astype(dtype), right.astype(dtype)
        merge = self.merge_axes and not (_sharded(left) or _sharded(right))
        if not (merge and step.summed):
            axes = [
                tuple(labels.index(c) for c in chosen)
                for chosen in (step.summed, step.batch)
                for labels in (step.left_labels, step.right_labels)
            ]
            return self._dot(left, right, ((axes[0], axes[1]), (axes[2], axes[3])))
        labels = step.left_labels + step.right_labels
        sizes = dict(zip(labels, left.shape + right.shape, strict=True))
        a, axis_a = _matrices(step, step.left_labels, left, summed_last=True)
        b, axis_b = _matrices(step, step.right_labels, right, summed_last=False)
        batch = ((0,), (0,)) if step.batch else ((), ())
        result = self._dot(a, b, (((axis_a,), (axis_b,)), batch))
        return result.reshape([sizes[c] for c in step.labels])

    def _dot(self, left: jax.Array, right: jax.Array, axes: Any) -> jax.Array:
        return lax.dot_general(
            left,
            right,
            axes,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
        )

    # Slices.

    def _sliced(self, *operands: jax.Array) -> jax.Array:
        values = {i: self._reduced(i, x) for i, x in enumerate(operands)}
        self._run(values, self._nodes(inside=False))
        result = self._loop(levels(self.model, self.slices), values, None, frozenset())
        return result.astype(self._dtype(values)).reshape(self.model.network.output_shape)

    def _dtype(self, values: dict[int, jax.Array]) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return self.preferred_element_type or jnp.result_type(*values.values())

    def _loop(
        self,
        todo: Sequence[tuple[str, int]],
        values: dict[int, jax.Array],
        total: jax.Array | None,
        thin: frozenset[str],
    ) -> jax.Array:
        """Executes a contraction in a loop over slices of the labels ``todo``.

        Parts of a sum are added to ``total``.

        There is one scan per label, those of the output outside. Labels that were cut into
        slices of one, ``thin``, have no axis any more.
        """
        if not todo:
            values = dict(values)
            self._run(values, self._nodes(inside=True), thin)
            part = self._ordered(values, thin)
            return part if total is None else _add(total, part)
        (label, count), *rest = todo
        inner = thin if self.model.network.sizes[label] > count else thin | {label}
        # A scan reads slices of a first axis, and writes their gradients, in place.
        first = {n: x for n, x in values.items() if self._labels(n, thin).startswith(label)}
        stacked = {n: _split(x, count) for n, x in first.items()}
        whole = {n: x for n, x in values.items() if n not in first}

        # Without the checkpoint every slice would leave its intermediates to the backward pass.
        @functools.partial(jax.checkpoint, prevent_cse=False)
        def contract(total: jax.Array | None, k: jax.Array, parts: Any, whole: Any) -> jax.Array:
            cut = {n: _slice(x, self._labels(n, thin), label, count, k) for n, x in whole.items()}
            return self._loop(rest, parts | cut, total, inner)

        rounds = (jnp.arange(count, dtype=jnp.int32), stacked)
        shape, dtype = self._shape(values, thin), self._dtype(values)
        if label in self.model.network.output:
            return _place(
                lambda k, parts: contract(None, k, parts, whole).astype(dtype),
                jax.ShapeDtypeStruct(shape, dtype),
                self._output(thin).index(label),
                rounds,
            )
        if total is None:
            total = jnp.zeros(shape, sum_dtype(dtype))
        return lax.scan(lambda acc, xs: (contract(acc, *xs, whole), None), total, rounds)[0]

    def _shape(self, values: dict[int, jax.Array], thin: frozenset[str]) -> tuple[int, ...]:
        """Returns the shape of an executed contraction's result, in the output's axis order."""
        sizes: dict[str, int] = {}
        for node, x in values.items():
            sizes.update(zip(self._labels(node, thin), x.shape, strict=True))
        return tuple(sizes[label] for label in self._output(thin))


def _split(x: jax.Array, count: int) -> jax.Array:
    """Splits an operand's sliced axis into stacked slices, for the `lax.scan` of an execution.

    Slices of length 1 lose the first axis.

    An axis of size 1 would make XLA copy the array.
    """
    length = x.shape[0] // count
    return x if length == 1 else x.reshape(count, length, *x.shape[1:])


def _slice(x: jax.Array, labels: str, label: str, count: int, k: jax.Array) -> jax.Array:
    """Cuts slice ``k`` out of an operand's axis ``label``, to execute a sliced contraction."""
    if label not in labels:
        return x
    axis = labels.index(label)
    length = x.shape[axis] // count
    if length == 1:
        return lax.dynamic_index_in_dim(x, k, axis, keepdims=False)
    return lax.dynamic_slice_in_dim(x, k * length, length, axis)


def _place(
    part: Callable[..., jax.Array], result: Any, axis: int, rounds: tuple[jax.Array, Any]
) -> jax.Array:
    """Executes a sliced contraction as a scan that writes slices of the result along an axis."""
    if axis == 0:
        parts = lax.scan(lambda _, xs: (None, part(*xs)), None, rounds)[1]
        return parts.reshape(result.shape)
    length = result.shape[axis] // len(rounds[0])
    shape = (*result.shape[:axis], length, *result.shape[axis + 1 :])

    def step(whole: jax.Array, xs: Any) -> tuple[jax.Array, None]:
        new = part(*xs).reshape(shape)
        return lax.dynamic_update_slice_in_dim(whole, new, xs[0] * length, axis), None

    return lax.scan(step, jnp.zeros(result.shape, result.dtype), rounds)[0]


def _matrices(step: Step, labels: str, x: jax.Array, *, summed_last: bool) -> tuple[jax.Array, int]:
    """Reshapes an operand to matrices to execute a pairwise product by `jax.lax.dot_general`.

    Axes already in one of the two possible orders stay in place; others are transposed into
    the order that matrix products like best on that side.
    """
    size = dict(zip(labels, x.shape, strict=True))
    free = step.free(labels)
    if step.copied(labels):
        target = free + step.summed if summed_last else step.summed + free
        x = lax.transpose(x, [labels.index(c) for c in step.batch + target])
    else:
        summed_last = step.summed_last(labels)
    groups = (free, step.summed) if summed_last else (step.summed, free)
    shape = [math.prod(size[c] for c in group) for group in groups]
    if step.batch:
        shape.insert(0, math.prod(size[c] for c in step.batch))
    return x.reshape(shape), len(shape) - (1 if summed_last else 2)


def _sharded(x: jax.Array) -> bool:
    """Whether an operand has an explicitly sharded axis, which the executor must not reshape."""
    return any(axis is not None for axis in jax.typeof(x).sharding.spec)


def sum_dtype(dtype: Any) -> Any:
    """Returns the dtype in which the executor sums slices of a contraction: float32 at least."""
    short = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.dtype(jnp.float32) if short else jnp.dtype(dtype)


def _add(total: jax.Array, term: jax.Array) -> jax.Array:
    return total | term if term.dtype == jnp.bool_ else total + term.astype(total.dtype)


def _diagonal(x: jax.Array, labels: str, label: str) -> tuple[jax.Array, str]:
    """Takes an operand's diagonal over axes of one label, before products are executed."""
    times = labels.count(label)
    if times < 2:
        return x, labels
    rest = [i for i, c in enumerate(labels) if c != label]
    axes = [i for i, c in enumerate(labels) if c == label]
    size = x.shape[axes[0]]
    x = lax.transpose(x, [*axes, *rest]).reshape(size**times, *(x.shape[i] for i in rest))
    # The diagonal of an n × … × n block is every (1 + n + n² + …)-th entry: a strided slice,
    # where a mask or a gather would read, or compute, n times as much.
    stride = sum(size**p for p in range(times))
    x = lax.slice_in_dim(x, 0, max((size - 1) * stride + 1, 0), max(stride, 1))
    return x, label + "".join(labels[i] for i in rest)


def run_on_host(
    model: Model, slices: Slices, operands: Sequence[np.ndarray], dtype: Any
) -> np.ndarray:
    """Executes a contraction of NumPy arrays on the host, in the order and slices of its plan.

    Products are summed in ``dtype``, which NumPy's matrix products have to know.
    """
    network = model.network
    terms = [_reduced(network, i, x.astype(dtype)) for i, x in enumerate(operands)]
    loops = levels(model, slices)
    output = network.reduced_output
    if not loops:
        return _contracted(model, terms).reshape(network.output_shape)
    out = np.zeros([network.sizes[label] for label in output], dtype)
    for index in itertools.product(*(range(count) for _, count in loops)):
        chosen = {
            label: slice(k * (size := network.sizes[label] // count), (k + 1) * size)
            for (label, count), k in zip(loops, index, strict=True)
        }
        parts = [_cut(x, network.reduced[i], chosen) for i, x in enumerate(terms)]
        _cut(out, output, chosen)[...] += _contracted(model, parts)
    return out.reshape(network.output_shape)


def _cut(x: np.ndarray, labels: str, chosen: Mapping[str, slice]) -> np.ndarray:
    return x[(*(chosen.get(label, slice(None)) for label in labels), ...)]


def _reduced(network: Network, operand: int, x: np.ndarray) -> np.ndarray:
    """Reduces a NumPy operand before products are executed on the host: diagonals, sums."""
    labels, kept = network.squeezed(operand), network.reduced[operand]
    x = x.reshape([n for n in network.shapes[operand] if n != 1])
    numbers = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return np.einsum(x, [numbers[label] for label in labels], [numbers[label] for label in kept])


def _contracted(model: Model, terms: Sequence[np.ndarray]) -> np.ndarray:
    """Executes all products of a contraction by NumPy on the host."""
    count, labels = len(terms), model.network.reduced[0]
    values = dict(enumerate(terms))
    for k, step in enumerate(model.steps):
        values[count + k] = _product(step, values.pop(step.left), values.pop(step.right))
        labels = step.labels
    ((_, value),) = values.items()
    return value.transpose([labels.index(label) for label in model.network.reduced_output])


def _product(step: Step, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Executes one product of a contraction on the host by NumPy's batched matrix product."""
    sizes = dict(zip(step.left_labels + step.right_labels, left.shape + right.shape, strict=True))
    rows, columns = step.free(step.left_labels), step.free(step.right_labels)
    a = left.transpose([step.left_labels.index(c) for c in step.batch + rows + step.summed])
    b = right.transpose([step.right_labels.index(c) for c in step.batch + step.summed + columns])
    batch, m, k, n = (
        math.prod(sizes[c] for c in group) for group in (step.batch, rows, step.summed, columns)
    )
    result = a.reshape(batch, m, k) @ b.reshape(batch, k, n)
    return result.reshape([sizes[c] for c in step.labels])
