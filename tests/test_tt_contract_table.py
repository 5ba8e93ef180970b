"""One table of every function with static shapes: jit, vmap, grad, dtypes, order 1, rank 1.

A row holds the function and what it does to dense arrays. Each is run as it is in five dtypes, and
as jit(vmap(value_and_grad)) of a generic weighted sum of its entries, whose value and gradient must
be those of the dense counterpart, differentiated numerically.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contract_cases import TABLE, Operands, Row, as_array, densified, operands, weighted
from tests.oracles import check_gradient, eps, error, norm


def reference(row: Row) -> Callable[[Operands], float]:
    """The weighted sum by NumPy; of the function's own results where it loses accuracy."""
    if row.exact is None:
        return lambda o: float(weighted(as_array(row.call(o), np), np))
    return lambda o: float(weighted(row.exact(densified(o)), np))


# Every other one, as compiling takes long.
FEW = [n if i % 2 else pytest.param(n, marks=pytest.mark.slow) for i, n in enumerate(TABLE)]


@pytest.mark.parametrize("name", FEW)
def test_value_and_gradient_under_jit_and_vmap(rng, name):
    row = TABLE[name]
    two = [operands(rng, "ordinary", np.complex128) for _ in range(2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *two)

    def loss(o: Operands) -> Any:
        return weighted(as_array(row.call(o), jnp), jnp)

    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(loss)))(stacked)
    for k, made in enumerate(two):
        expected = reference(row)(made)
        assert float(values[k]) == pytest.approx(expected, abs=1e-10 * (1 + abs(expected)))
        gradient = jax.tree.map(lambda g, k=k: g[k], gradients)
        check_gradient(reference(row), made, rng, gradient)


@pytest.mark.parametrize(
    ("dtype", "case"),
    [
        *((dtype, "ordinary") for dtype in (np.float32, jnp.bfloat16)),
        (np.float64, "order 1"),
        # The gradients above are of complex trains already.
        pytest.param(np.complex128, "ordinary", marks=pytest.mark.slow),
        pytest.param(np.float64, "rank 1", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", TABLE)
def test_value_and_dtype(rng, name, dtype, case):
    row = TABLE[name]
    made = operands(rng, case, dtype)
    tolerance = 20 * eps(dtype)
    # bfloat16 has no room below 10 eps = 0.08.
    out = row.call(made)
    for leaf in jax.tree.leaves(out):
        assert leaf.dtype in (dtype, np.zeros((), dtype).real.dtype)
    if row.exact is not None:
        expected = row.exact(densified(made))
        assert error(as_array(out, np), expected) <= tolerance * max(norm(expected), 1)
    else:
        assert np.isfinite(as_array(out, np)).all()
