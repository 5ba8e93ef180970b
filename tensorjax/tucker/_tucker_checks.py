"""Checks of arguments: a Tucker tensor, no batch of them, and TT-ranks of a train core only."""

from typing import Any

from tensorjax import _check
from tensorjax._formats.trains import TT
from tensorjax.tucker._types import Tucker


def kind(name: str, t: Any) -> None:
    """Raises TypeError unless an argument is a `Tucker`, or a batch, of an enabled dtype."""
    if not isinstance(t, Tucker):
        raise TypeError(
            f"{name}: expected a Tucker, got {type(t).__name__}; build one with tucker.from_dense"
        )
    _check.held(name, t)


def one(name: str, t: Any) -> None:
    """Raises an error if ``t`` is not a single Tucker tensor: another type, or a batch of them."""
    kind(name, t)
    if t.factors[0].ndim != 2:
        raise ValueError(
            f"{name}: expected one Tucker, got a batch of them {t.factors[0].shape[:-2]}; "
            "map the function over it with jax.vmap"
        )


def check_core_rank(t: Tucker, core_rank: Any) -> None:
    """Raises ValueError if ``core_rank`` is given to a function of a Tucker with a dense core."""
    if core_rank is not None and not isinstance(t.core, TT):
        raise ValueError(
            f"core_rank: expected None, for the core is dense, got {core_rank!r}; "
            "TT-ranks are those of a core that is a TT"
        )
