"""Report of a patched cross approximation: status, error, patches, evaluations, advice."""

import dataclasses
from typing import Literal

Status = Literal["converged", "unseen", "budget", "max_patches"]
ADVICE = {
    "converged": "",
    "unseen": "some patches are zero wherever f was looked at, or large at few entries: parts of f "
    "as small may have escaped; give pivots=, multi-indices where f is large",
    "budget": "max_evaluations is too small for tol: raise it, or ask for less accuracy",
    "max_patches": "f needs more patches at this tol: raise max_patches or max_rank, or ask for "
    "less accuracy",
}


@dataclasses.dataclass(frozen=True)
class PatchesInfo:
    """Report of a patched cross approximation: status, error estimate, patches, evaluations.

    Attributes:
      status: "converged"; "unseen": nothing that was looked at is wrong, but some patches hold so
        few large entries, or none, that others may have escaped, and ``error_std`` is inf;
        "budget" or "max_patches": a limit was met, and the patches that were not split any further
        are the best trains found.
      error: estimated ‖f − p‖ / ‖f‖, from held-out entries of all patches.
      error_std: standard error of that estimate; 0 only if all patches were read whole.
      evaluations: multi-indices at which f was evaluated.
      searches: patches that were fitted, those that were split among them.
      patches: number of patches of the result; those that are zero are left out.
      largest_rank: of all patches.
      seconds: time taken.
      advice: what to do next, in words; empty if converged.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> f = lambda i: 1.0 * (i.sum(axis=1) > 8)
      >>> p, info = tt.patches.cross(f, (4, 4, 4, 4), tol=1e-4, key=jax.random.key(0))
      >>> info.status, info.evaluations
      ('converged', 256)

    Source: ours.
    """

    status: Status
    error: float
    error_std: float
    evaluations: int
    searches: int
    patches: int
    largest_rank: int
    seconds: float
    advice: str
