"""Hints in errors for names and options of other libraries, and for removed ones: what serves."""

from collections.abc import Callable, Collection, Mapping
from typing import NoReturn

# Options that functions have in SciPy, torchTT, TT-Toolbox, teneva, t3f, quimb or ITensor: names
# there, and by options here the hint for functions that have it (with "", for all functions).
OPTIONS = {
    "accuracy cutoff eps epsilon rtol": {"tol": "the relative error allowed is tol="},
    "chi_max max_bond max_tt_rank maxdim r_max rmax": {
        "max_rank": "TT-ranks are bounded by max_rank=",
        "rank": "TT-ranks are bounded by rank=, which are static",
    },
    "maxiter n_iter_max nswp": {
        "max_sweeps": "the work is bounded by max_sweeps=",
        "max_iterations": "the work is bounded by max_iterations=",
    },
    "random_state rng seed": {"key": "random numbers come from key=jax.random.key(0)"},
    "device": {"": "jax.device_put moves a train to a device"},
    "initial_guess v0": {"x0": "a search starts from x0="},
}
# Options that only one function has elsewhere.
_OPTIONS_OF_ONE = {
    "eigsh": {
        "which": "eigsh computes the lowest eigenpairs (SciPy's 'SA'); the largest are those of "
        "-A, with values negated",
        "M B": "generalised problems A x = λ B x are not solved here; where B = L Lᴴ and the "
        "inverse of L has low ranks, solve the plain one of L⁻¹ A L⁻ᴴ",
        "sigma": "eigenvalues inside of the spectrum are not searched here; those nearest to σ "
        "are the lowest of (A − σ)², a rounded product",
    },
    "solve": {"M": "a preconditioner is preconditioner="},
    "einsum": {"dtype": "the result has the common dtype of the operands, or the one that "
               "preferred_element_type= gives"},
}  # fmt: skip

# Names that functions of tensor trains have in NumPy, torchTT, teneva, TT-Toolbox or quimb.
FUNCTIONS = {
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
# Names that `pde` had.
REMOVED_FROM_PDE = {
    "FieldMotion Fields FlowMap Flowed Sheared Shears field_motion flows shears": (
        'pde.integrate(coordinates="adaptive"): nonlinear coordinates took many times as long '
        "as linear ones on the problems that they were made for, and were removed"
    )
}


def explain(
    function: str, known: Collection[str], options: Collection[str], error: TypeError
) -> None:
    """Adds a hint to the error of a function that was called with an option it does not have.

    Args:
      function: its name.
      known: names of the options that it has.
      options: those that it was called with.
      error: what Python raised.
    """
    text = str(error)
    if not text.startswith(f"{function}() got an unexpected keyword argument"):
        return
    own = {names: {"": hint} for names, hint in _OPTIONS_OF_ONE.get(function, {}).items()}
    for names, hints in (*own.items(), *OPTIONS.items()):
        if any(f"'{name}'" in text for name in names.split() if name in options):
            for option, hint in hints.items():
                if not option or option in known:
                    error.add_note(hint)
                    return


def missing(package: str, hints: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Returns the ``__getattr__`` of a package, whose error says what serves in place of a name.

    Type checkers must not see it: to them all names would be attributes then.

    Args:
      package: its full name.
      hints: `FUNCTIONS`, or others by names that are not there.
    """

    def refuse(name: str) -> NoReturn:
        found = next((ours for theirs, ours in hints.items() if name in theirs.split()), "")
        hint = f"; see {found.format(name=name)}" if found else ""
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")

    return refuse
