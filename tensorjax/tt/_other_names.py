"""Error messages for function names of other TT libraries, which give the name in this one."""

from collections.abc import Callable
from typing import Any, NoReturn

# Names that functions of tensor trains have in NumPy, torchTT, teneva, TT-Toolbox or quimb.
_ELSEWHERE = {
    "abs angle cos exp log sign sin sqrt tanh": "tt.map(jnp.{name}, t, tol=...)",
    "als als_solve amen_solve fast_mv_solve gmres": "tt.solve",
    "amen_mv matmat": "a @ x",
    "array as_tt tt_svd svd": "tt.from_dense",
    "compress rounding truncate": "tt.round",
    "const full_like": "c * tt.ones(shape)",
    "cross_interpolation dmrg_cross func_int function_interpolate": "tt.cross",
    "diag": "tt.diagonal, tt.diagonal_matrix",
    "dmrg eig eigb eigs": "tt.eigsh",
    "dot vdot": "tt.inner, x @ y",
    "einsum": "tt.tensordot, tensorjax.contract.einsum",
    "expand_dims stack": "t[None], tt.concatenate",
    "eye": "tt.identity",
    "flip": "t[::-1]",
    "full": "tt.to_dense, or c * tt.ones(shape)",
    "get": "t[i, j, k], tt.evaluate",
    "load save": "numpy.savez with interop.to_numpy, interop.from_numpy",
    "max min optima_tt": "tt.argmax, tt.argmin",
    "mul multiply": "x * y, tt.hadamard",
    "orth orthogonal": "tt.orthogonalize",
    "outer": "tt.kron",
    "qlaplace_dd laplacian": "tt.chain_operator, tt.quantics.laplacian",
    "rand randn": "tt.random",
    "squeeze": "t[..., 0]",
    "std": "tt.var",
    "sub subtract": "x - y",
    "swapaxes transpose_modes": "tt.permute",
}


def missing(package: str) -> Callable[[str], NoReturn]:
    """Returns ``tensorjax.tt.__getattr__``, whose error translates other libraries' names.

    Type checkers must not see it: to them all names would be attributes then.
    """

    def refuse(name: str) -> NoReturn:
        found: Any = next(
            (ours for theirs, ours in _ELSEWHERE.items() if name in theirs.split()), ""
        )
        hint = f"; see {found.format(name=name)}" if found else ""
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")

    return refuse
