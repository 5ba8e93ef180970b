"""`TTRandomProjection`: tensor-train random projection as a scikit-learn transformer."""

import dataclasses
import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _extras, tt
from tensorjax.sketch import _sparse_input, _variance_and_bounds
from tensorjax.sketch._apply import apply
from tensorjax.sketch._constructors import ttrp
from tensorjax.sketch._map_types import Kronecker
from tensorjax.sketch._train_input import to_tt_matrix

with _extras.needed_by("tensorjax.sketch.TTRandomProjection"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.exceptions import DataDimensionalityWarning
    from sklearn.utils import check_array, check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data

_DTYPES = [np.float64, np.float32]


class TTRandomProjection(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Scikit-learn estimator (transformer) that applies a tensor-train random projection.

    Dense and sparse input; float32 gives float32 and float64 gives float64, whatever JAX's
    64-bit mode is (that mode is entered for the call, in the calling thread only). Rows of X are
    projected by `tensorjax.sketch.apply`.

    With ``n_components="auto"`` M is the least one proven for this family of maps, by
    `johnson_lindenstrauss_min_dim`: with probability 1 − delta all squared distances between the
    n_samples rows seen in `fit` are kept within 1 ± eps. It is not scikit-learn's bound, which
    holds for dense maps; with d modes and TT-rank one M grows as (d²/eps²)^d and soon exceeds
    n_features. A TT-rank of the order of the first mode brings it down to d² times the dense bound.

    Args:
      n_components: M, or "auto".
      eps: for "auto", the distortion of squared distances, in (0, 1).
      delta: for "auto", the probability of failure, in (0, 1).
      distribution: "rademacher", "gaussian" or "sparse" (Achlioptas' ±√3 w.p. 1/6 each, else 0).
      rank: TT-rank of the map.
      in_shape: (n_1, …, n_d) with ∏ n_k ≥ n_features (zeros fill up); None to choose.
      out_shape: (m_1, …, m_d) with ∏ m_k = M; None to choose.
      order: count d of modes where no shape is given; None is as in `ttrp`.
      random_state: seed, `numpy.random.RandomState` or None, as everywhere in scikit-learn.

    Attributes:
      n_components_: M.
      n_features_in_: N.
      projection_: the `Kronecker` map, holding NumPy arrays; None if "auto" keeps all features.

    Example:
      >>> import numpy as np
      >>> from tensorjax.sketch import TTRandomProjection
      >>> x = np.random.default_rng(0).standard_normal((10, 784)).astype(np.float32)
      >>> f = TTRandomProjection(24, random_state=0).fit(x)
      >>> f.transform(x).shape, f.projection_.size
      ((10, 24), 280)

    Source: Feng, Tang, He, Zhou, Liao, arXiv 2010.10797.
    """

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        eps: float = 0.1,
        delta: float = 0.1,
        distribution: str = "rademacher",
        rank: int = 1,
        in_shape: Sequence[int] | None = None,
        out_shape: Sequence[int] | None = None,
        order: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ):
        self.n_components = n_components
        self.eps = eps
        self.delta = delta
        self.distribution = distribution
        self.rank = rank
        self.in_shape = in_shape
        self.out_shape = out_shape
        self.order = order
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fits the estimator: draws the random map for the shape and dtype of X.

        Args:
          X: array or scipy.sparse matrix (n_samples, n_features).
          y: ignored.

        Returns:
          The estimator itself.

        Raises:
          ValueError: a parameter is out of range, or "auto" needs more components than there are
            features although a dense map would not. If a dense map would too, no random
            projection has that guarantee, and all features are kept as they are (the distances
            are then exact).

        Warns:
          DataDimensionalityWarning: a given M exceeds n_features.
        """
        del y
        X = validate_data(self, X, accept_sparse=["csr", "csc"], dtype=_DTYPES)
        n_samples, n_features = X.shape
        out_shape = self._output(n_samples, n_features)
        if out_shape is None:
            self.n_components_, self.projection_ = n_features, None
            return self
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        with jax.enable_x64(X.dtype == np.float64):
            p = ttrp(
                jax.random.key(seed),
                n_features if self.in_shape is None else tuple(self.in_shape),
                out_shape,
                distribution=self.distribution,
                rank=self.rank,
                order=self.order,
                dtype=X.dtype,
            )
            # NumPy arrays keep float64 when unpickled outside JAX's 64-bit mode.
            p = jax.tree.map(np.asarray, p)
        if math.prod(p.in_shape) < n_features:
            raise ValueError(
                f"in_shape: expected a product of at least n_features = {n_features}, "
                f"got {self.in_shape!r}"
            )
        self.projection_ = dataclasses.replace(p, in_size=n_features)
        self.n_components_ = p.out_size
        return self

    def _output(self, n_samples: int, n_features: int) -> int | tuple[int, ...] | None:
        """Returns the estimator's number of output components or modes; None keeps all features."""
        given = self.n_components
        is_int = isinstance(given, numbers.Integral) and not isinstance(given, bool)
        if given != "auto" and (not is_int or given < 1):  # type: ignore[operator]
            raise ValueError(f"n_components: expected an int >= 1 or 'auto', got {given!r}")
        if self.out_shape is not None:
            shape = tuple(self.out_shape)
            if is_int and math.prod(shape) != given:
                raise ValueError(
                    f"out_shape: expected a product of n_components = {given}, got {shape}"
                )
        elif is_int:
            shape = int(given)  # type: ignore[arg-type]
        else:
            return self._guaranteed(n_samples, n_features)
        count = math.prod(shape) if isinstance(shape, tuple) else shape
        if count > n_features:
            warnings.warn(
                f"n_components = {count} exceeds n_features = {n_features}: "
                "the dimension is not reduced",
                DataDimensionalityWarning,
                stacklevel=3,
            )
        return shape

    def _guaranteed(self, n_samples: int, n_features: int) -> tuple[int, ...] | None:
        d = len(self.in_shape) if self.in_shape is not None else self.order or 2

        def shape(order: int) -> tuple[int, ...]:
            return _variance_and_bounds.guaranteed_shape(
                n_samples, self.eps, delta=self.delta, order=order, rank=self.rank
            )

        if math.prod(shape(d)) <= n_features:
            return shape(d)
        dense = shape(1)[0]
        if dense >= n_features:
            return None
        raise ValueError(
            f"n_components='auto': eps={self.eps} and n_samples={n_samples} need "
            f"{math.prod(shape(d))} components in this family of maps ({d} modes, rank "
            f"{self.rank}), more than n_features = {n_features}. Pass n_components (no guarantee), "
            f"a larger eps, or a rank up to {shape(d)[0]}; a dense map (order=1) needs {dense}"
        )

    def transform(self, X: Any) -> np.ndarray:
        """Projects the rows of X, dense or sparse, by the fitted estimator.

        Args:
          X: array or scipy.sparse matrix (n_samples, n_features_in_).

        Returns:
          Array (n_samples, n_components_) of the dtype of X.

        Raises:
          ValueError: another number of columns, NaN or Inf.
        """
        check_is_fitted(self)
        X = validate_data(
            self,
            X,
            accept_sparse=["csr", "csc"],
            dtype=_DTYPES,
            reset=False,
            # `apply` finds NaN and Inf in its small result, without another pass over X.
            ensure_all_finite=self.projection_ is None,
        )
        if self.projection_ is None:
            return X.toarray() if hasattr(X, "toarray") else X.copy()
        return _in_dtype(X.dtype, self.projection_, X)

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Maps rows back by the estimator's Moore–Penrose inverse of the projection.

        For a plain Kronecker product it is the product of the factors' inverses; with TT-ranks or
        padding it is found from the Gram matrix of the M rows, at a cost of M³.

        Args:
          X: array or scipy.sparse matrix (n_samples, n_components_).

        Returns:
          Array (n_samples, n_features_in_) of the dtype of X.

        Raises:
          ValueError: another number of columns, NaN or Inf.
        """
        check_is_fitted(self)
        X = check_array(X, accept_sparse=["csr", "csc"], dtype=_DTYPES)  # type: ignore[arg-type]
        X = X.toarray() if hasattr(X, "toarray") else X
        if X.shape[1] != self.n_components_:
            raise ValueError(
                f"X: expected n_components_ = {self.n_components_} columns, got {X.shape[1]}"
            )
        if self.projection_ is None:
            return X.copy()
        with jax.enable_x64(True):
            wide = self.projection_.astype(np.float64)
            inverse, gram = _inverse(wide)
        if gram is not None:
            X = X @ gram.astype(X.dtype)
        return _in_dtype(X.dtype, inverse, X)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _in_dtype(dtype: Any, p: Kronecker, X: Any) -> np.ndarray:
    with jax.enable_x64(dtype == np.float64):
        return np.array(apply(p.astype(dtype), X))


def _inverse(p: Kronecker) -> tuple[Kronecker, np.ndarray | None]:
    """Computes the pseudoinverse of the estimator's projection: a map, a matrix or None."""
    plain = (
        not any(r > 1 for r in p.ranks)
        and p.out_size == math.prod(p.out_shape)
        and p.in_size == math.prod(p.in_shape)
    )
    # A map scales its cores by (size of its output)^{-1/2}; the inverse must not.
    if plain:
        back = [np.linalg.pinv(c[0, :, :, 0])[None, :, :, None] for c in p.cores]
        back[0] = back[0] * math.sqrt(p.out_size * p.in_size)
        gram = None
    else:
        back = [np.swapaxes(c, 1, 2) for c in p.cores]
        back[0] = back[0] * math.sqrt(p.in_size / p.out_size)
        gram = np.linalg.pinv(_gram(p), hermitian=True)
    inverse = dataclasses.replace(
        p, in_shape=p.out_shape, in_size=p.out_size, out_size=p.in_size, cores=tuple(back)
    )
    return inverse, gram


def _gram(p: Kronecker) -> np.ndarray:
    """Computes the Gram matrix A Aᵀ of the estimator's map A, for the pseudoinverse of A."""
    a = to_tt_matrix(p)
    gram = np.asarray(tt.to_dense(tt.matmul(a, tt.transpose(a))))
    out = gram.reshape(math.prod(p.out_shape), -1)[: p.out_size, : p.out_size]
    unused = np.arange(p.in_size, math.prod(p.in_shape))
    if unused.size:
        digits = np.stack(np.unravel_index(unused, p.in_shape)).astype(np.int32)
        columns = np.asarray(_sparse_input.columns(p, jnp.asarray(digits)))
        out = out - columns.T @ columns
    return out
