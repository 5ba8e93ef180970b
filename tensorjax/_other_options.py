"""Hints in errors for options of other libraries: the option or the call that serves here."""

from collections.abc import Collection

# Options that functions have in SciPy, torchTT, TT-Toolbox, teneva, t3f, quimb or ITensor: names
# there, and by options here the hint for functions that have it (with "", for all functions).
_ELSEWHERE = {
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
_OF_FUNCTIONS = {
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
    own = {names: {"": hint} for names, hint in _OF_FUNCTIONS.get(function, {}).items()}
    for names, hints in (*own.items(), *_ELSEWHERE.items()):
        if any(f"'{name}'" in text for name in names.split() if name in options):
            for option, hint in hints.items():
                if not option or option in known:
                    error.add_note(hint)
                    return
