"""Options of a trainer, checked by themselves and together."""

import dataclasses
import numbers
from collections.abc import Iterable
from typing import Any, Literal, get_args

import jax

from tensorjax import _check
from tensorjax.offload._training.passes.engine import Engine
from tensorjax.offload._training.trace import Trace

Schedule = Literal["overlap", "after_backward", "pipelined", "sequential", "one_step_stale"]

Overflow = Literal["store", "wait"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Checked options of a `Trainer`, under the names of its arguments.

    With schedule "sequential", lookahead is 0.
    """

    in_memory: frozenset[str]
    gradient_bytes: int | None
    gradient_overflow: Overflow
    microbatches: int
    clip: float | None
    schedule: Schedule
    commit_every: int | None
    lookahead: int

    @property
    def spills(self) -> bool:
        """Whether the options let a trainer write gradients to the store until their update."""
        return self.gradient_bytes is not None and self.gradient_overflow == "store"

    @property
    def waits(self) -> bool:
        """Whether a trainer's options make a step wait for its own updates before it returns."""
        return self.schedule in ("after_backward", "pipelined", "sequential")

    @property
    def early(self) -> bool:
        """Whether a trainer's options allow reads of states before their gradients arrive."""
        return self.schedule not in ("pipelined", "sequential")


def checked(
    *,
    store: Any,
    in_memory: Any,
    gradient_bytes: Any,
    gradient_overflow: Any,
    microbatches: Any,
    clip: Any,
    schedule: Any,
    commit_every: Any,
    lookahead: Any,
    key: Any,
    engine: Any,
    trace: Any,
) -> Options:
    """Returns a trainer's options, checked; raises TypeError or ValueError if they are invalid."""
    _check.choice("schedule", schedule, get_args(Schedule))
    _check.choice("gradient_overflow", gradient_overflow, get_args(Overflow))
    microbatches = _check.integer("microbatches", microbatches, low=1)
    lookahead = _check.integer("lookahead", lookahead, low=1)
    if commit_every is not None:
        commit_every = _check.integer("commit_every", commit_every, low=1)
    if gradient_bytes is not None:
        gradient_bytes = _check.integer("gradient_bytes", gradient_bytes, low=0)
    for name, value, kind in (("engine", engine, Engine), ("trace", trace, Trace)):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name}: expected {kind.__name__} or None, got {value!r}")
    _check_key(key)
    options = Options(
        in_memory=_checked_names(in_memory),
        gradient_bytes=gradient_bytes,
        gradient_overflow=gradient_overflow,
        microbatches=microbatches,
        clip=checked_clip(clip),
        schedule=schedule,
        commit_every=commit_every,
        lookahead=0 if schedule == "sequential" else lookahead,
    )
    _check_together(options, store)
    return options


def _check_together(options: Options, store: Any) -> None:
    if options.gradient_overflow == "wait":
        if options.gradient_bytes is None:
            raise ValueError("gradient_overflow: expected gradient_bytes with 'wait', got none")
        if options.schedule != "overlap" or options.clip is not None:
            raise ValueError(
                "gradient_overflow: 'wait' needs updates during the backward pass, but with "
                f"schedule {options.schedule!r} and clip {options.clip!r} they wait for its end; "
                "expected 'store'"
            )
    if store is None and (options.commit_every is not None or options.spills):
        raise ValueError("commit_every, gradient_bytes: expected a store with them, got none")


def _checked_names(in_memory: Any) -> frozenset[str]:
    several = isinstance(in_memory, Iterable) and not isinstance(in_memory, str)
    names: list[Any] = list(in_memory) if several else []
    if not several or not all(isinstance(name, str) for name in names):
        raise TypeError(f"in_memory: expected names of groups in a tuple, got {in_memory!r}")
    return frozenset(names)


def checked_clip(clip: float | None) -> float | None:
    """Checks a trainer's option ``clip``, the largest gradient norm: positive, or None."""
    real = isinstance(clip, numbers.Real) and not isinstance(clip, bool)
    if clip is not None and not (real and 0 < clip < float("inf")):
        raise ValueError(f"clip: expected a positive norm or None, got {clip!r}")
    return clip


def _check_key(key: Any) -> None:
    if key is None:
        return
    try:
        jax.eval_shape(lambda k: jax.random.fold_in(k, 0), key)
    except (TypeError, ValueError) as error:
        raise TypeError(f"key: expected one key of jax.random, or None, got {key!r}") from error
