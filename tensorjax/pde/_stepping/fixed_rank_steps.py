"""Runge–Kutta steps at fixed TT-ranks, which are traced for a compiled loop over steps."""

from typing import Any, NamedTuple

from tensorjax import tt
from tensorjax._formats.trains import TT
from tensorjax.pde._problems.problem import terms_of
from tensorjax.pde._stepping.compiled_once import Program

# For every stage but the last: its time and its step. Then the weights of v and of the stages in
# the result, and the time and the weight of the last slope.
TABLEAUX = {
    "rk2": (((0.0, 1.0),), (1 / 2, 1 / 2), (1.0, 1 / 2)),
    "rk4": (((0.0, 0.5), (0.5, 0.5), (0.5, 1.0)), (-1 / 3, 1 / 3, 2 / 3, 1 / 3), (1.0, 1 / 6)),
}
# Times within a step, as shares of dt, at which the stages evaluate the right side.
SHARES = (0.0, 0.5, 1.0)


class Scheme(NamedTuple):
    """Static arguments of a compiled fixed-rank TT time loop: right side, method and TT-ranks."""

    rates: Program
    method: str
    ranks: Any


def runge_kutta_step(
    scheme: Scheme, constants: Any, dt: Any, v: TT, row: Any
) -> tuple[list[TT], list[Any], tuple[list[TT], list[Any]]]:
    """Performs one Runge–Kutta step at fixed TT-ranks; returns stages and change of the source.

    And the trains and weights of the sum that was rounded to the last one.

    Args:
      scheme: right side, method and ranks.
      constants: arrays of the right side.
      dt: time step.
      v: state before the step.
      row: time, and maps and motions of the coordinates at `SHARES`, if they move.
    """
    stages, weights, (share, factor) = TABLEAUX[scheme.method]
    t, *place = row
    sources = []

    def terms(x: TT, share: float) -> list[Any]:
        i = SHARES.index(share)
        operators, source = scheme.rates(constants, t + share * dt, *(p[i] for p in place))
        found = terms_of(operators, source, x)
        if source is not None:
            sources.append(found[-1])
        return found

    # As in `tensorjax.pde._stepping.runge_kutta_adams_imex`: rounded stages stand for the slopes.
    known = [v]
    for at, length in stages:
        slope = terms(known[-1], at)
        sizes = [1.0, *[length * dt] * len(slope)]
        known.append(tt.linear_combination([v, *slope], sizes, rank=scheme.ranks))
    slope = terms(known[-1], share)
    sizes = [*weights, *[factor * dt] * len(slope)]
    out = tt.linear_combination([*known, *slope], sizes, rank=scheme.ranks)
    # The slopes of the method of order 4 that are compared are of one time.
    seen = sources if scheme.method == "rk2" else []
    change = [(seen[-1], dt), (seen[0], -dt)] if seen else []
    return [*known, out], change, ([*known, *slope], sizes)
