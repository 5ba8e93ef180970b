"""Hints in errors for options of other libraries: the option or the call that serves here."""

from collections.abc import Collection

# Options that functions have in SciPy, torchTT, TT-Toolbox, teneva, t3f, quimb or ITensor.
_ELSEWHERE = {
    "accuracy cutoff eps epsilon rtol": "the relative error allowed is tol=",
    "chi_max max_bond max_tt_rank maxdim r_max rmax": "TT-ranks are bounded by rank= where they "
    "are static, by max_rank= in searches (tt.cross, tt.solve, tt.eigsh)",
    "maxiter n_iter_max nswp": "the work is bounded by max_sweeps= or max_iterations=",
    "random_state rng seed": "random numbers come from key=jax.random.key(0)",
    "device": "jax.device_put moves a train to a device",
    "initial_guess v0": "a search starts from x0=",
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


def explain(function: str, options: Collection[str], error: TypeError) -> None:
    """Adds a hint to the error of a function that was called with an option it does not have."""
    text = str(error)
    if not text.startswith(f"{function}() got an unexpected keyword argument"):
        return
    for table in (_OF_FUNCTIONS.get(function, {}), _ELSEWHERE):
        for names, hint in table.items():
            if any(f"'{name}'" in text for name in names.split() if name in options):
                error.add_note(hint)
                return
