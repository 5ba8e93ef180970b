"""Functional trains: functions of several variables as a train of coefficients over bases."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._formats.arithmetic_operators import Multipliable, Namespace
from tensorjax._formats.pytree_base import FrozenPytree, shown
from tensorjax._formats.trains import TT, single
from tensorjax._typing import ArrayLike, DType, Scalar
from tensorjax.tt._arrays.mode_products import mode_product
from tensorjax.tt.functions.bases import Basis, same_interval
from tensorjax.tt.functions.bspline import BSpline
from tensorjax.tt.functions.chebyshev import Chebyshev


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class FunctionTrain(
    Multipliable,
    FrozenPytree,
    fields=("bases", "coefficients"),
    static=("bases",),
    encode=lambda bases: [[type(b).__name__, *dataclasses.astuple(b)] for b in bases],
    decode=lambda saved: tuple(_KINDS[name](*fields) for name, *fields in saved),
):
    """Function on a box: f(x) = Σ_i c[i_1, …, i_d] φ_{i_1}(x_1) ⋯ φ_{i_d}(x_d), c a tensor train.

    A pytree: the bases are static, the cores of c are its arrays.

    Attributes:
      bases: one basis a variable, which also gives its interval.
      coefficients: TT of shape (n_1, …, n_d), n_k the size of basis k; real or complex.

    Raises:
      ValueError: coefficients of another shape than the bases ask for.
      TypeError: a basis or a train of another type.

    Operators: ``f(x)`` evaluates; ``+``, ``-`` and ``*`` between functions on one box, and with
    scalars; ``/`` by scalars. Bases of different degrees are brought to a common one, exactly.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> bases = [tt.functions.Chebyshev(1, 0.0, 2.0)] * 2   # 1, x − 1
      >>> f = tt.functions.FunctionTrain(bases, tt.rank_one([jnp.ones(2)] * 2))   # x y
      >>> f
      FunctionTrain([0, 2] × [0, 2], sizes=(2, 2), ranks=(1, 1, 1), dtype=float32)
      >>> print(f"{f([1.5, 2.0]):.3f} {(f * f + 1.0)([1.5, 2.0]):.3f}")
      3.000 10.000

    Source: A. Gorodetsky, S. Karaman, Y. Marzouk, "A continuous analogue of the tensor-train
    decomposition", Comput. Methods Appl. Mech. Engrg. 347 (2019); D. Bigoni, A. Engsig-Karup,
    Y. Marzouk, "Spectral tensor-train decomposition", SIAM J. Sci. Comput. 38 (2016).
    """

    bases: tuple[Basis, ...]
    coefficients: TT
    dense_name: ClassVar[str] = "tt.to_dense(f.coefficients)"
    entrywise_name: ClassVar[str] = "tt.functions.compose({0}, f, tol=)"
    _namespace = Namespace("tensorjax.tt.functions")

    def __init__(self, bases: Sequence[Basis], coefficients: TT):
        given = checked_bases(bases)
        single("coefficients", coefficients, TT)
        sizes = tuple(b.size for b in given)
        if coefficients.shape != sizes:
            raise ValueError(
                f"coefficients: expected shape {sizes}, the sizes of the bases, "
                f"got {coefficients.shape}"
            )
        self._set(given, coefficients)

    @property
    def ndim(self) -> int:
        """Number d of variables of a functional train."""
        return len(self.bases)

    @property
    def domain(self) -> tuple[tuple[float, float], ...]:
        """Intervals (low, high) of all variables: the box of a functional train."""
        return tuple((b.low, b.high) for b in self.bases)

    @property
    def ranks(self) -> tuple[int, ...]:
        """TT-ranks (r_0, …, r_d) of the coefficients of a functional train."""
        return self.coefficients.ranks

    @property
    def dtype(self) -> DType:
        """Dtype of the coefficients of a functional train."""
        return self.coefficients.dtype

    @property
    def size(self) -> int:
        """Number of stored entries in the cores of a functional train."""
        return self.coefficients.size

    def _carry(self, f: Callable[[Any], Any], dtype: Any) -> Self:
        return self._unchecked(self.bases, self.coefficients._carry(f, dtype))

    def _shift(self, exponent: int) -> Self:
        return self._unchecked(self.bases, self.coefficients._shift(exponent))

    def __call__(self, x: ArrayLike) -> jax.Array:
        """Evaluates the functional train at points of its box.

        Args:
          x: real points (…, d).

        Returns:
          (…,) values.
        """
        return self._namespace.evaluate(self, x)

    def __mul__(self, other: Self | Scalar) -> Self:
        if isinstance(other, FunctionTrain):
            return self._namespace.multiply(self, other)
        return super().__mul__(other)

    @shown
    def __repr__(self) -> str:
        box = " × ".join(f"[{b.low:g}, {b.high:g}]" for b in self.bases)
        if len(box) > 60:
            box = f"{self.ndim} variables"
        return (
            f"FunctionTrain({box}, sizes={tuple(b.size for b in self.bases)}, "
            f"ranks={self.ranks}, dtype={jnp.dtype(self.dtype).name})"
        )


def checked_bases(bases: Any) -> tuple[Basis, ...]:
    """Checks the bases given to a `FunctionTrain`: returns a tuple; TypeError for other objects."""
    given = tuple(bases) if isinstance(bases, list | tuple) else (bases,)
    for k, b in enumerate(given):
        if not isinstance(b, Basis):
            raise TypeError(
                f"bases[{k}]: expected a basis such as tt.functions.Chebyshev(8, low, high), "
                f"got {type(b).__name__}"
            )
    if not given:
        raise ValueError("bases: expected one a variable, got none")
    return given


def checked(f: Any, name: str = "f") -> FunctionTrain:
    """Returns an argument that is one functional train; raises an error for anything else."""
    if not isinstance(f, FunctionTrain):
        raise TypeError(
            f"{name}: expected a FunctionTrain, got {type(f).__name__}; "
            "make one with tt.functions.interpolate or tt.functions.fit"
        )
    single(f"{name}.coefficients", f.coefficients, TT)
    return f


def checked_variable(f: FunctionTrain, variable: Any) -> int:
    """Returns the number of a functional train's variable, not negative; checks its range."""
    return _check.integer("variable", variable, low=-f.ndim, high=f.ndim - 1) % f.ndim


_KINDS: dict[str, Any] = {"BSpline": BSpline, "Chebyshev": Chebyshev}


def in_dtype(matrix: np.ndarray, dtype: Any) -> np.ndarray:
    """Casts a matrix that acts on a functional train's coefficients to their dtype."""
    return matrix.astype(dtype)


def times_modes(t: TT, matrices: Mapping[int, np.ndarray]) -> TT:
    """Multiplies modes of a functional train's coefficients by matrices, as changes of basis."""
    for k, matrix in matrices.items():
        t = mode_product(t, in_dtype(matrix, t.dtype), k)
    return t


def on_common_bases(f: FunctionTrain, g: FunctionTrain) -> tuple[tuple[Basis, ...], TT, TT]:
    """Converts two functional trains on one box to common bases, exactly."""
    check_boxes(f, g)
    bases: list[Basis] = []
    of_f: dict[int, np.ndarray] = {}
    of_g: dict[int, np.ndarray] = {}
    for k, (a, b) in enumerate(zip(f.bases, g.bases, strict=True)):
        basis, of_a, of_b = a.common(b)
        bases.append(basis)
        if basis != a:
            of_f[k] = of_a
        if basis != b:
            of_g[k] = of_b
    return tuple(bases), times_modes(f.coefficients, of_f), times_modes(g.coefficients, of_g)


def check_boxes(f: FunctionTrain, g: FunctionTrain) -> None:
    """Raises ValueError unless functional trains agree in box and kinds of basis."""
    if checked(f).ndim != checked(g, "g").ndim:
        raise ValueError(f"g: expected a function of {f.ndim} variables, got {g.ndim}")
    for k, (a, b) in enumerate(zip(f.bases, g.bases, strict=True)):
        same_interval(a, b, k)
