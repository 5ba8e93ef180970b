"""Trial of late-stage rank cuts: a cut that makes the loss collapse to chance is undone."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax._check import is_traced
from tensorjax.optim._packed_arrays import _whole

# Placeholder for values found later. NaN or Inf would stop training under jax_debug_nans or _infs.
UNKNOWN = -1e30
# A cut that loses this share of the loss reduction since chance is a collapse; a smaller loss is
# left to further training, or to the targets.
GIVEN_BACK = 0.5
# While more than this share of the loss is the size of the model's outputs, not the error of a
# model without any, the estimate of chance is renewed.
EXCESS = 0.2
QUICK = 0.8  # decay of a moving average that follows a training within a few steps
# A gain by less than this share of the loss says nothing of chance: the training may have begun
# with a trained model.
LEAST_GAIN = 0.5
# Scaling the outputs of an untrained model up costs this share of its loss, halved, at least and at
# most: they have nothing to do with the targets. Near the fit of a trained one it costs or gains
# more than the whole loss, or gains.
UNTRAINED = 0.1, 1.2
GROWTH = 0.5  # of the gain, by which one undone cut may raise the estimate of chance
GIVEN_UP = 2.0**-4  # below this no cut is tried any more: after five of one index in a row
TRIAL = 8  # most losses averaged before a verdict, as those of minibatches are noisy


NUMBERS = (
    "first", "start", "sure", "given", "quick", "low", "last", "noise", "tried", "total", "most",
    "refused", "size", "loss",
)  # fmt: skip
_DTYPES = {"sure": jnp.bool_, "given": jnp.bool_, "tried": jnp.int32, "refused": jnp.int32}


class _Packed(NamedTuple):
    numbers: Any
    saved: Any


class Watch(_Packed):
    """Record of losses and rank cuts on trial, to undo a cut that raises the loss to chance.

    The numbers stand in one vector, since every array of an optimiser's state adds some
    microseconds to a step: that of its kernel, and of its buffer from step to step.

    Attributes:
      numbers: (…, 14), in single precision; each has its own name, too:
      first: the first loss; −1e30 before.
      start: chance, the loss of a model that has learnt nothing, as estimated from the first
        losses and gradients; −1e30 before.
      sure: whether that estimate is final.
      given: whether chance is no estimate, but an option.
      quick: short moving average of the loss.
      low: the least it has been.
      last: the last loss.
      noise: moving average of squared differences of successive losses, weighted by age.
      tried: losses seen since the cut that is on trial; −1 if there is none.
      total: their sum.
      most: gates that may die in one cut; below 1, one, and it was halved for each cut of one that
        was undone in a row, until no cut is tried any more.
      refused: cuts undone.
      size: of the layers after the cut that was undone last.
      loss: after that cut.
      saved: values of the gates on trial, else zero, in dicts by the keys of their paths.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name not in NUMBERS:
            raise AttributeError(name)
        numbers, place = self.numbers, NUMBERS.index(name)
        if isinstance(numbers, jax.Array) and not is_traced(numbers):
            numbers = np.asarray(numbers)  # without a program for each of them
        if isinstance(numbers, jax.Array):
            found = jax.lax.index_in_dim(_whole(numbers), place, -1, keepdims=False)
        else:
            found = numbers[..., place]
        return found.astype(_DTYPES[name]) if name in _DTYPES else found

    def _replace(self, **new: Any) -> "Watch":
        """Returns the record of losses and cuts with some of the values replaced."""
        saved = new.pop("saved", self.saved)
        if not new:
            return Watch(self.numbers, saved)
        # One vector by selection: of a stack XLA makes a kernel for every number.
        out = _whole(jnp.asarray(self.numbers))
        place = jax.lax.broadcasted_iota(jnp.int32, out.shape, out.ndim - 1)
        for name, x in new.items():
            value = jnp.asarray(x).astype(jnp.float32)[..., None]
            out = jnp.where(place == NUMBERS.index(name), value, out)
        return Watch(out, saved)


class Verdict(NamedTuple):
    """Verdict on a rank cut on trial: undo it, keep it, or wait; and how many gates to cut next."""

    undo: jax.Array
    waits: jax.Array
    most: jax.Array
    presses: jax.Array


def fresh(saved: Any, gates: int, chance: Any = None) -> Watch:
    """Builds the record of losses and trial cuts of ranks at the beginning of a training.

    Args:
      saved: zeros for all gates, in dicts by the keys of their paths.
      chance: the loss of a model that has learnt nothing, if it is known.
    """
    start = UNKNOWN if chance is None else chance
    values = dict.fromkeys(NUMBERS, 0.0)
    values |= {"first": start, "start": start, "sure": chance is not None}
    values |= {"given": chance is not None, "quick": UNKNOWN, "low": UNKNOWN, "last": UNKNOWN}
    values |= {"tried": -1, "most": float(gates)}
    return Watch(jnp.stack([jnp.asarray(x).astype(jnp.float32) for x in values.values()]), saved)


def limit(watch: Any) -> Any:
    """Returns the loss above which a rank cut on trial is undone as a collapse; 1e30 if unknown."""
    least = LEAST_GAIN * jnp.abs(watch.low)
    # An estimate below what was learnt is none, as with gradients that are scaled.
    chance = jnp.where(watch.start - watch.low > least, watch.start, watch.first)
    chance = jnp.where(watch.given, watch.first, chance)
    gain = chance - watch.low
    known = (watch.first > UNKNOWN / 10) & jnp.where(watch.given, gain > 0, gain > least)
    return jnp.where(known, watch.low + GIVEN_BACK * gain, 1e30)


def seen(
    watch: Watch, loss: jax.Array, excess: jax.Array, ones: jax.Array, finite: jax.Array,
    decay: jax.Array, late: jax.Array,
) -> Watch:  # fmt: skip
    """Adds the loss of one update to the `Watch` of trial cuts: the record of losses and cuts.

    The first loss is above chance if the first outputs are large. These are independent of the
    targets, so that with outputs scaled by s the loss is L(s) ≈ L(0) + s² c, and chance L(0) ≈ L(1)
    − L'(1)/2. L'(1) is the sum of gate × gradient over a bond. Where L'(1) does not fit that, or is
    zero though gates have moved, the model was trained before: then chance is not known.

    Args:
      watch: before.
      excess: L'(1)/2, the largest of all bonds.
      ones: whether all gates are still one, as at the start of a training.
      finite: whether the loss is.
      decay: of the average of the noise.
      late: whether the late stage has begun.
    """
    first, tries = watch.quick <= UNKNOWN / 10, finite & (watch.tried >= 0)
    change = jnp.where(first, 0.0, loss - watch.last)
    quick = jnp.where(first, loss, QUICK * watch.quick + (1 - QUICK) * loss)
    quick = jnp.where(finite, quick, watch.quick)
    low = jnp.where(first | ((quick < watch.low) & ~tries), quick, watch.low)
    share = jnp.abs(loss) * jnp.array(UNTRAINED, jnp.float32)
    untrained = (excess >= share[0]) & (excess <= share[1])
    untrained |= ones & (jnp.abs(excess) < share[0])  # as of small outputs
    began = jnp.where(untrained, loss, UNKNOWN)
    excess = jnp.maximum(excess, 0.0)
    chance = jnp.where(jnp.isfinite(excess), loss - excess, loss)
    return watch._replace(
        first=jnp.where(first & finite & ~watch.given, began, watch.first),
        start=jnp.where(finite & ~watch.sure, chance, watch.start),
        sure=watch.sure | (finite & ((excess <= EXCESS * jnp.abs(loss)) | late)),
        quick=quick,
        low=jnp.where(finite, low, watch.low),
        last=jnp.where(finite, loss, watch.last),
        noise=jnp.where(finite, decay * watch.noise + (1 - decay) * change**2 / 2, watch.noise),
        tried=watch.tried + tries.astype(jnp.int32),
        total=watch.total + jnp.where(tries, loss, 0.0),
    )


def judged(
    watch: Watch, mass: Any, size: Any, count: jax.Array, gates: int
) -> tuple[Watch, Verdict]:
    """Decides from the losses whether the rank cut on trial is undone, kept, or watched on.

    Args:
      mass: weight of the moving averages.
      size: of the layers, with the cut.
      count: gates on trial.
    """
    top = limit(watch)
    trial, number = watch.tried > 0, jnp.maximum(watch.tried, 1).astype(jnp.float32)
    mean = watch.total / number
    margin = 2 * jnp.sqrt(watch.noise / jnp.maximum(mass, 1e-6) / number)
    last = watch.tried >= TRIAL
    undo = trial & (jnp.where(last, mean, mean - margin) > top)
    waits = (watch.tried == 0) | (trial & ~undo & ~last & (mean + margin > top))
    # After a cut that was kept, twice as many again, as in a line search.
    kept = trial & ~undo & ~waits
    twice = jnp.minimum(jnp.maximum(2 * watch.most, 1.0), float(max(gates, 1)))
    # Below one: so many cuts of one index have been undone since the last one that was kept.
    tried = jnp.minimum(count, watch.most)
    half = jnp.where(tried > 1, jnp.floor(tried / 2), jnp.minimum(watch.most, 1.0) / 2)
    most = jnp.where(undo, half, jnp.where(kept, twice, watch.most))
    watch = _corrected(watch, undo & ~watch.given, mean - margin)
    watch = watch._replace(
        tried=jnp.where(waits, watch.tried, -1),
        most=most,
        refused=watch.refused + undo.astype(jnp.int32),
        size=jnp.where(undo, size, watch.size),
        loss=jnp.where(undo, mean, watch.loss),
    )
    # Nor is anything cut where the loss is that high already, whatever the reason.
    fine = ~undo & ~waits & (watch.last <= top)
    noise = 2 * jnp.sqrt(watch.noise / jnp.maximum(mass, 1e-6))
    again = most >= GIVEN_UP
    presses = again & (watch.last - noise <= top)
    allowed = jnp.where(fine & again, jnp.maximum(most, 1.0), 0.0)
    return watch, Verdict(undo, waits, allowed, presses)


def _corrected(watch: Watch, undone: jax.Array, loss: jax.Array) -> Watch:
    """Raises the estimated loss of an untrained model if a trial cut led far above it.

    No smaller rank is much worse than chance: the first loss was then that of a model which had
    been trained before. By a half of the gain at most, since outputs can also grow by a cut.
    """
    chance = jnp.maximum(watch.first, watch.start)
    gain = chance - watch.low
    higher = jnp.minimum(loss, chance + GROWTH * gain)
    wrong = undone & (loss > chance + GIVEN_BACK * gain)
    return watch._replace(
        first=jnp.where(wrong, higher, watch.first), start=jnp.where(wrong, higher, watch.start)
    )
