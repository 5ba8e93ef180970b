"""Einsum of NumPy arrays by matrix products, beside NumPy's own."""

import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax._cores import contractions
from tensorjax._cores.contractions import einsum
from tensorjax.contract._numpy_einsum import numpy_einsum

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def drawn(rng: np.random.Generator) -> tuple[str, list[np.ndarray]]:
    """One to five arrays of up to four axes, with diagonals, own sums and sizes zero and one."""
    labels = "abcdefg"
    sizes = {c: int(rng.choice([0, 1, 2, 3], p=[0.03, 0.17, 0.4, 0.4])) for c in labels}
    terms = [
        "".join(rng.choice(list(labels), rng.integers(0, 5))) for _ in range(rng.integers(1, 6))
    ]
    used = sorted(set("".join(terms)))
    output = "".join(rng.permutation(used)[: rng.integers(0, len(used) + 1)]) if used else ""
    dtype = DTYPES[rng.integers(len(DTYPES))]
    arrays = []
    for term in terms:
        x = rng.standard_normal([sizes[c] for c in term])
        x = x + 1j * rng.standard_normal(x.shape) if dtype().dtype.kind == "c" else x
        # Views in any order of axes: what sweeps hand on is often transposed.
        x = np.asarray(x, dtype)
        order = rng.permutation(x.ndim)
        arrays.append(x.transpose(order).copy().transpose(np.argsort(order)))
    return ",".join(terms) + "->" + output, arrays


@pytest.mark.parametrize("seed", range(10))
def test_drawn_networks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        expression, arrays = drawn(rng)
        found = numpy_einsum(expression, *arrays)
        wanted = np.einsum(expression, *arrays)
        assert found.dtype == wanted.dtype, expression
        tol = 200 * np.finfo(wanted.dtype).eps
        # Sums cancel: roundoff is beside the sum of magnitudes.
        size = np.einsum(expression, *map(np.abs, arrays))
        assert np.all(np.abs(found - wanted) <= tol * size + tol), expression


def test_numpy_in_numpy_out_and_jax_otherwise() -> None:
    x, y = np.ones((2, 3)), np.ones((3, 4))
    assert type(einsum("ij,jk->ik", x, y)) is np.ndarray
    mixed = einsum("ij,jk->ik", jnp.asarray(x), y)
    np.testing.assert_array_equal(mixed, einsum("ij,jk->ik", x, y))


@pytest.mark.parametrize("seed", range(4))
def test_summed_axes_between_others(seed: int) -> None:
    """A factor whose summed axes lie between free ones, wide or narrow, is not copied wrongly."""
    rng = np.random.default_rng(seed)
    sizes = dict(zip("abcdef", rng.integers(1, 8, 6), strict=True))
    for expression in ("anbc,dn->abcd", "dn,anbc->dbca", "abnc,dban->dnc", "acb,dcf->dafb"):
        names = {"n": int(rng.integers(1, 8)), **sizes}
        terms = expression.partition("->")[0].split(",")
        x, y = (rng.standard_normal([names[c] for c in t]) for t in terms)
        np.testing.assert_allclose(
            einsum(expression, x, y), np.einsum(expression, x, y), rtol=1e-12, atol=1e-12
        )


def test_inputs_are_named() -> None:
    with pytest.raises(ValueError, match="expression"):
        numpy_einsum("ij,jk", np.ones((2, 3)), np.ones((3, 4)))
    with pytest.raises(ValueError, match="differ"):
        numpy_einsum("ij,jk->ik", np.ones((2, 3)), np.ones((2, 4)))
    # Their product is the same, so that matrices would fit.
    for shape in ((3, 2, 5), (2, 3, 5)):
        with pytest.raises(ValueError, match="differ"):
            numpy_einsum("cij,ijb->cb", np.ones((4, *shape[:2])), np.ones((*shape[1::-1], 5)))
        with pytest.raises(ValueError, match="differ"):
            numpy_einsum("bij,cijd->bcd", np.ones((4, *shape[:2])), np.ones((2, *shape[1::-1], 5)))
    with pytest.raises(ValueError, match="axes"):
        numpy_einsum("ij,jk,kl->il", np.ones((2, 3)), np.ones((3, 4, 1)), np.ones((4, 2)))


@pytest.mark.parametrize("expression", ["ai,ai->ai", "ai,bi->abi", "ai,bi->ab", "ai,ai,b->aib"])
def test_an_axis_of_one_is_not_repeated(expression: str) -> None:
    shapes = {"a": 3, "b": 2, "i": 4}
    terms = expression.partition("->")[0].split(",")
    arrays = [np.ones([shapes[c] for c in t]) for t in terms]
    arrays[1] = arrays[1][..., :1]
    with pytest.raises(ValueError, match="differ"):
        numpy_einsum(expression, *arrays)


def test_scalars_of_numpy_stay_numpys() -> None:
    found = einsum("i,->i", np.arange(3.0), np.float64(2))
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, [0, 2, 4])


@pytest.mark.parametrize("seed", range(6))
def test_products_of_factored_operators_are_those_of_the_whole_core(seed: int) -> None:
    """Rows, and weights with vectors, against cores Σ_p C[a, p, b] O_p x of drawn sizes."""
    rng = np.random.default_rng(seed)
    a, p, b, r, n, s, m = rng.integers(1, 6, 7)
    coefficients, images = rng.standard_normal((a, p, b)), rng.standard_normal((p, r, n, s))
    whole = np.einsum("apb,prns->ranbs", coefficients, images).swapaxes(-1, -2)  # r, a, n, s, b
    whole = whole.reshape(r * a, n, s * b)
    f, weights = rng.standard_normal((m, s * b)), rng.standard_normal((n, m))
    wanted = np.einsum("xny,my,nm->mx", whole, f, weights)
    given = coefficients, images, f, weights
    np.testing.assert_allclose(contractions.applied_functionals(*given), wanted, atol=1e-12)
    np.testing.assert_allclose(contractions.functionals(whole, f, weights), wanted, atol=1e-12)
    rows = rng.standard_normal((m, r * a))
    wanted = np.einsum("mx,xny->mny", rows, whole).reshape(m * n, -1)
    found = contractions.applied_from_left(coefficients, images, rows)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
