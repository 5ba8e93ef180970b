"""Runs a planned contraction with `jax.lax` operations.

Every product is one `jax.lax.dot_general`, so that XLA sees batched matrix products and
nothing else. Slices are taken inside `jax.lax.scan`; the body of the scan is a
`jax.checkpoint`, so that the backward pass keeps the operands and no intermediate of any slice.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tensorjax._costs import Model, Slices, looped
from tensorjax._steps import Step


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """What to run.

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
        """Contracts operands whose shapes were checked before."""
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
        root = max(values)
        labels = self._labels(root)
        result = values[root]
        network = self.model.network
        result = lax.transpose(result, [labels.index(c) for c in network.reduced_output])
        result = result.reshape(network.output_shape)
        if self.preferred_element_type is not None:
            result = result.astype(self.preferred_element_type)
        return result

    def _reduced(self, operand: int, x: jax.Array) -> jax.Array:
        """Squeezes axes of size 1, takes diagonals, sums what no product needs."""
        network = self.model.network
        labels = network.squeezed(operand)
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
            return jnp.any(x, axes)
        return jnp.sum(x, axes, dtype=self.preferred_element_type or x.dtype)

    def _labels(self, node: int) -> str:
        n = len(self.model.network.reduced)
        return self.model.network.reduced[node] if node < n else self.model.steps[node - n].labels

    def _nodes(self, inside: bool) -> list[int]:
        """Numbers of the steps inside or outside the loop over slices."""
        n = len(self.model.network.reduced)
        depends = looped(self.model, self.slices)
        return [n + k for k in range(len(self.model.steps)) if (n + k in depends) == inside]

    def _run(self, values: dict[int, jax.Array], nodes: list[int]) -> None:
        """Makes the products ``nodes``, taking factors out of ``values``."""
        n = len(self.model.network.reduced)
        for node in nodes:
            step = self.model.steps[node - n]
            values[node] = self._product(step, values.pop(step.left), values.pop(step.right))

    def _product(self, step: Step, left: jax.Array, right: jax.Array) -> jax.Array:
        # Factors differ in type only where an intermediate has the preferred type.
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(left, right)
        left, right = left.astype(dtype), right.astype(dtype)
        if not (self.merge_axes and step.summed):
            axes = [
                tuple(labels.index(c) for c in chosen)
                for chosen in (step.summed, step.batch)
                for labels in (step.left_labels, step.right_labels)
            ]
            return self._dot(left, right, ((axes[0], axes[1]), (axes[2], axes[3])))
        sizes = dict(zip(step.left_labels + step.right_labels, left.shape + right.shape))
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
        network = self.model.network
        values = {i: self._reduced(i, x) for i, x in enumerate(operands)}
        self._run(values, self._nodes(inside=False))
        out = {c: n for c, n in self.slices.items() if c in network.output}
        summed = {c: n for c, n in self.slices.items() if c not in network.output}
        body = jax.checkpoint(functools.partial(self._slice, out, summed), prevent_cse=False)
        kind = jax.eval_shape(body, jnp.int32(0), jnp.int32(0), values)

        def part(i: jax.Array) -> jax.Array:
            """One slice of the output, summed over the slices of summed labels."""
            rounds = math.prod(summed.values())
            if rounds == 1:
                return body(i, jnp.int32(0), values)
            # Many terms: sum them in at least single precision.
            zeros = jnp.zeros(kind.shape, sum_dtype(kind.dtype))
            return _fold(lambda acc, k: _add(acc, body(i, k, values)), zeros, rounds)

        if not out:
            return part(jnp.int32(0)).astype(kind.dtype).reshape(network.output_shape)

        def place(whole: jax.Array, i: jax.Array) -> jax.Array:
            start = self._start(network.reduced_output, out, i)
            return lax.dynamic_update_slice(whole, part(i).astype(kind.dtype), start)

        shape = [network.sizes[c] for c in network.reduced_output]
        whole = _fold(place, jnp.zeros(shape, kind.dtype), math.prod(out.values()))
        return whole.reshape(network.output_shape)

    def _slice(
        self,
        out: Slices,
        summed: Slices,
        i: jax.Array,
        k: jax.Array,
        values: dict[int, jax.Array],
    ) -> jax.Array:
        """Slice ``i`` of the output from slice ``k`` of the summed labels."""
        parts = {}
        for node, x in values.items():
            labels = self._labels(node)
            if set(labels) & self.slices.keys():
                at_out, at_sum = self._start(labels, out, i), self._start(labels, summed, k)
                sizes = [n // self.slices.get(c, 1) for c, n in zip(labels, x.shape, strict=True)]
                start = [a + b for a, b in zip(at_out, at_sum, strict=True)]
                x = lax.dynamic_slice(x, start, sizes)
            parts[node] = x
        self._run(parts, self._nodes(inside=True))
        root = max(parts)
        order = [self._labels(root).index(c) for c in self.model.network.reduced_output]
        result = lax.transpose(parts[root], order)
        if self.preferred_element_type is not None:
            result = result.astype(self.preferred_element_type)
        return result

    def _start(self, labels: str, slices: Slices, index: jax.Array) -> list[jax.Array]:
        """Where slice ``index`` of the labels ``slices`` starts on every axis of an array."""
        offsets, rest = {}, index
        for label, count in slices.items():
            length = self.model.network.sizes[label] // count
            offsets[label] = rest % count * length
            rest = rest // count
        return [offsets.get(label, jnp.int32(0)) for label in labels]


def _matrices(step: Step, labels: str, x: jax.Array, *, summed_last: bool) -> tuple[jax.Array, int]:
    """A factor as a batch of matrices (or one matrix), and its summed axis.

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


def sum_dtype(dtype: Any) -> Any:
    """The type in which slices of type ``dtype`` are summed: at least single precision."""
    short = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.dtype(jnp.float32) if short else jnp.dtype(dtype)


def _add(total: jax.Array, term: jax.Array) -> jax.Array:
    return total | term if term.dtype == jnp.bool_ else total + term.astype(total.dtype)


def _fold(
    function: Callable[[jax.Array, jax.Array], jax.Array], start: jax.Array, rounds: int
) -> jax.Array:
    """``function(... function(function(start, 0), 1) ..., rounds − 1)``."""
    steps = jnp.arange(rounds, dtype=jnp.int32)
    return lax.scan(lambda carry, k: (function(carry, k), None), start, steps)[0]


def _diagonal(x: jax.Array, labels: str, label: str) -> tuple[jax.Array, str]:
    """Merges the axes that share ``label`` into one, which comes first."""
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
