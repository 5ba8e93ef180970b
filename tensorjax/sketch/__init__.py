"""Random projections f: R^N → R^M that preserve distances, stored in tensor-train form.

Names by task:

  maps       ttrp gaussian sparse khatri_rao tt_rows cp_rows
  use        apply variance variance_bound johnson_lindenstrauss_min_dim to_tt_matrix
  types      Projection Kronecker Dense Sparse TTRows CPRows
  estimator  TTRandomProjection, for scikit-learn

``help(sketch.ttrp)`` describes a function.

`ttrp` draws a tensor-train random projection; `gaussian`, `sparse`, `khatri_rao`, `tt_rows` and
`cp_rows` draw other random maps. `apply` maps dense, sparse and tensor-train input by
any of them, `variance` is the exact variance of ‖f(x)‖², and `TTRandomProjection` is the
scikit-learn estimator (scikit-learn is loaded when it is first asked for).

Example:
  >>> import jax
  >>> from tensorjax import sketch, tt
  >>> p = sketch.ttrp(jax.random.key(0), (10,) * 30, (2,) * 30)
  >>> x = tt.random(jax.random.key(1), (10,) * 30, rank=2)  # 10³⁰ entries
  >>> sketch.apply(p, x).ranks == x.ranks
  True
"""

from typing import TYPE_CHECKING, Any

from tensorjax import _extras
from tensorjax.sketch._apply import apply
from tensorjax.sketch._constructors import cp_rows, gaussian, khatri_rao, sparse, tt_rows, ttrp
from tensorjax.sketch._map_types import CPRows, Dense, Kronecker, Projection, Sparse, TTRows
from tensorjax.sketch._train_input import to_tt_matrix
from tensorjax.sketch._variance_and_bounds import (
    johnson_lindenstrauss_min_dim,
    variance,
    variance_bound,
)

if TYPE_CHECKING:
    from tensorjax.sketch.estimator import TTRandomProjection

__all__ = [
    "CPRows",
    "Dense",
    "Kronecker",
    "Projection",
    "Sparse",
    "TTRandomProjection",
    "TTRows",
    "apply",
    "cp_rows",
    "gaussian",
    "johnson_lindenstrauss_min_dim",
    "khatri_rao",
    "sparse",
    "to_tt_matrix",
    "tt_rows",
    "ttrp",
    "variance",
    "variance_bound",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints the table of the docstring


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "TTRandomProjection":
            from tensorjax.sketch.estimator import TTRandomProjection

            return TTRandomProjection
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
