"""The scikit-learn transformer: its contract, its dtypes, its guarantee."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import DataDimensionalityWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from tensorjax import sketch
from tensorjax.sketch import TTRandomProjection
from tests.oracles import compilations

IGNORE_SIZE = "ignore::sklearn.exceptions.DataDimensionalityWarning"
IGNORE_SKIP = "ignore::sklearn.exceptions.SkipTestWarning"


@parametrize_with_checks([TTRandomProjection()])
def test_sklearn_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.filterwarnings(IGNORE_SIZE, IGNORE_SKIP)
def test_sklearn_contract_with_a_map() -> None:
    """scikit-learn's data have few features, so only a given size makes it draw a map."""
    results = check_estimator(TTRandomProjection(2, rank=2))
    assert {r["status"] for r in results} <= {"passed", "skipped"}


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((20, 784))


def test_it_is_the_functional_map(x: np.ndarray) -> None:
    f = TTRandomProjection(24, random_state=0).fit(x)
    p = f.projection_
    assert (p.in_shape, p.out_shape, f.n_components_, f.n_features_in_) == (
        (28, 28),
        (6, 4),
        24,
        784,
    )
    kron = np.kron(p.cores[0][0, :, :, 0], p.cores[1][0, :, :, 0]) / np.sqrt(24)
    np.testing.assert_allclose(f.transform(x), x @ kron.T, atol=1e-12)


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_are_kept_whatever_the_mode_of_jax(x: np.ndarray, dtype: Any, x64: bool) -> None:
    x = x.astype(dtype)
    with jax.enable_x64(x64):
        f = TTRandomProjection(24, distribution="gaussian", random_state=0).fit(x)
        y, back = f.transform(x), f.inverse_transform(f.transform(x))
        again = pickle.loads(pickle.dumps(f)).transform(x)
    assert y.dtype == back.dtype == again.dtype == dtype
    np.testing.assert_array_equal(y, again)
    core = [np.asarray(c, np.float64)[0, :, :, 0] for c in f.projection_.cores]
    exact = x.astype(np.float64) @ np.kron(*core).T / np.sqrt(24)
    np.testing.assert_allclose(y, exact, atol=100 * np.finfo(dtype).eps)
    assert jnp.zeros(1).dtype == jnp.float64  # the mode is what it was


def test_sparse_input_equals_dense(rng: np.random.Generator) -> None:
    x = scipy.sparse.random_array((9, 1000), density=0.05, rng=rng)
    f = TTRandomProjection(12, random_state=1).fit(x.tocsr())
    expected = f.transform(x.toarray())
    for form in ("tocsr", "tocsc", "tocoo"):
        y = f.transform(getattr(x, form)())
        assert isinstance(y, np.ndarray)
        np.testing.assert_allclose(y, expected, atol=1e-13)
    wide = scipy.sparse.csr_array(([1.0], ([0], [10**7 - 1])), shape=(2, 10**7))
    assert TTRandomProjection(12).fit_transform(wide).shape == (2, 12)


def test_pickle_clone_and_seed(x: np.ndarray) -> None:
    f = TTRandomProjection(24, rank=2, random_state=3)
    y = f.fit_transform(x)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(f)).transform(x), y)
    fresh = clone(f)
    assert not hasattr(fresh, "projection_")
    np.testing.assert_array_equal(fresh.fit_transform(x), y)
    other = clone(f).set_params(random_state=4).fit_transform(x)
    assert not np.allclose(other, y)
    state = np.random.RandomState(3)
    np.testing.assert_array_equal(clone(f).set_params(random_state=state).fit_transform(x), y)


def test_pipeline_and_feature_names(x: np.ndarray) -> None:
    chain = make_pipeline(StandardScaler(), TTRandomProjection(6, random_state=0))
    assert chain.fit_transform(x).shape == (20, 6)
    names = chain.get_feature_names_out()
    assert names.tolist() == [f"ttrandomprojection{k}" for k in range(6)]


def test_pandas_output(x: np.ndarray) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(x, columns=[f"pixel{k}" for k in range(784)])
    f = TTRandomProjection(3, random_state=0).set_output(transform="pandas").fit(frame)
    out = f.transform(frame)
    assert list(out.columns) == [
        "ttrandomprojection0",
        "ttrandomprojection1",
        "ttrandomprojection2",
    ]
    assert f.feature_names_in_[0] == "pixel0"


@pytest.mark.parametrize(
    "options",
    [
        {"n_components": 24},  # plain
        {"n_components": 24, "rank": 3},  # TT-ranks
        {"n_components": 23},  # surplus rows
        {"n_components": 24, "in_shape": (30, 30)},  # padded columns
        {"n_components": 23, "in_shape": (40, 25), "rank": 2, "distribution": "gaussian"},
        {"n_components": 12, "out_shape": (3, 4), "distribution": "sparse"},
    ],
)
def test_inverse_transform_is_the_pseudo_inverse(x: np.ndarray, options: dict[str, Any]) -> None:
    f = TTRandomProjection(random_state=5, **options).fit(x)
    a = f.transform(np.eye(784)).T
    y = f.transform(x)
    back = f.inverse_transform(y)
    np.testing.assert_allclose(back, y @ np.linalg.pinv(a).T, atol=1e-9)
    np.testing.assert_allclose(f.transform(back), y, atol=1e-9)
    sparse = f.inverse_transform(scipy.sparse.csr_array(y))
    np.testing.assert_allclose(sparse, back, atol=1e-12)


def test_auto_takes_the_proven_dimension() -> None:
    x = np.zeros((2, 40_000), np.float32)
    f = TTRandomProjection(eps=0.9, delta=0.4, random_state=0).fit(x)
    assert f.n_components_ == sketch.johnson_lindenstrauss_min_dim(2, 0.9, delta=0.4)
    m = f.projection_.out_shape[0]
    assert f.projection_.out_shape == (m, m)
    ranked = TTRandomProjection(eps=0.9, delta=0.4, rank=m).fit(x)
    assert ranked.projection_.out_shape == (m, 1)
    dense = TTRandomProjection(eps=0.9, delta=0.4, order=1).fit(x)
    assert len(dense.projection_.out_shape) == 1
    assert dense.n_components_ < m < f.n_components_


def test_auto_says_when_this_family_cannot_promise(rng: np.random.Generator) -> None:
    x = rng.standard_normal((50, 2000))
    with pytest.raises(ValueError, match=r"need \d+ components in this family"):
        TTRandomProjection(eps=0.5).fit(x)


def test_auto_keeps_all_features_when_no_map_can_promise(x: np.ndarray) -> None:
    f = TTRandomProjection(eps=0.1).fit(x)
    assert f.n_components_ == 784
    assert f.projection_ is None
    np.testing.assert_array_equal(f.transform(x), x)
    np.testing.assert_array_equal(f.inverse_transform(f.transform(x)), x)
    assert f.transform(scipy.sparse.csr_array(x)).shape == x.shape
    assert len(f.get_feature_names_out()) == 784


@pytest.mark.parametrize("sparse", [False, True])
def test_new_numbers_of_rows_compile_a_handful_of_programs(sparse: bool) -> None:
    rng = np.random.default_rng(11)
    rows = rng.standard_normal((3000, 96)).astype(np.float32)
    rows *= rng.random(rows.shape) < 0.1
    f = TTRandomProjection(12, random_state=0).fit(rows)
    whole = f.transform(rows)
    with compilations() as compiled:
        for count in rng.integers(1, 3000, 40):
            part = rows[:count]
            found = f.transform(scipy.sparse.csr_array(part) if sparse else part)
            np.testing.assert_allclose(found, whole[:count], atol=1e-4)
    assert len(compiled) <= 20


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_components": 0}, "n_components"),
        ({"n_components": 2.5}, "n_components"),
        ({"n_components": "many"}, "n_components"),
        ({"eps": 0.0}, "eps"),
        ({"delta": 1.0}, "delta"),
        ({"n_components": 4, "distribution": "uniform"}, "distribution"),
        ({"n_components": 4, "rank": 0}, "rank"),
        ({"n_components": 4, "in_shape": (10, 10)}, "in_shape"),
        ({"n_components": 4, "out_shape": (3, 2)}, "out_shape"),
        ({"n_components": 4, "order": 3, "in_shape": (28, 28)}, "order"),
    ],
)
def test_bad_parameters_are_named(x: np.ndarray, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        TTRandomProjection(**options).fit(x)


def test_bad_data_are_refused(x: np.ndarray) -> None:
    f = TTRandomProjection(24)
    with pytest.raises(NotFittedError):
        f.transform(x)
    f.fit(x)
    with pytest.raises(ValueError, match="features"):
        f.transform(x[:, :9])
    with pytest.raises(ValueError, match="n_components_ = 24"):
        f.inverse_transform(np.ones((2, 9)))
    bad = x.copy()
    bad[3, 4] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        f.transform(bad)
    with pytest.warns(DataDimensionalityWarning, match="exceeds n_features"):
        TTRandomProjection(900).fit(x)


def test_sklearn_is_loaded_only_when_asked_for() -> None:
    code = (
        "import sys; from tensorjax import sketch; assert 'sklearn' not in sys.modules;"
        "sketch.TTRandomProjection; assert 'sklearn' in sys.modules"
    )
    root = Path(__file__).resolve().parents[1]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sketch.nothing  # noqa: B018
