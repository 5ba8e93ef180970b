"""Basis-updating integrators for tensor trains: projector splitting and rank-adaptive BUG.

Both solve small linear equations for one core at a time, between the interfaces of all the others,
with the right side of the middle of the step. Neither represents the component of the right side
normal to the tangent space. So the bases are first widened by those of the rounded right side, with
weight zero (ours), and at the end the train is truncated: both are rank-adaptive, and both start
from a product state. A reaction is a source in these equations, evaluated at the middle of the
step, to which an Euler step leads: the order stays 2 (ours).

The estimate of the error is the defect of the trapezoidal rule, of order dt³ as the error itself:
it is taken with the whole right side, and so also measures what the bases cannot represent (ours).

Source: C. Lubich, I. Oseledets, B. Vandereycken, "Time integration of tensor trains", SIAM J.
Numer. Anal. 53 (2015), section 4; G. Ceruti, C. Lubich, D. Sulz, "Rank-adaptive time integration of
tree tensor networks", SIAM J. Numer. Anal. 61 (2023), here for the linear tree.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorjax._cores import interfaces, products
from tensorjax._cores.contractions import absorb, einsum, times_right
from tensorjax._cores.orthogonalization import left_qr, right_lq, right_orthogonal
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._discretization.affine_operators import affine_states, differentiated
from tensorjax.pde._discretization.axis import Axis
from tensorjax.pde._stepping.right_side import Clock, Rates
from tensorjax.pde._stepping.runge_kutta_adams_imex import Step
from tensorjax.pde._stepping.sketched_sums import Train, nothing, relative_norm, truncated
from tensorjax.pde._stepping.step_rounding import STAGE, Trim

Array = Any


class _Affine:
    """One mode of a PDE's affine operator in a splitting or BUG step, with its contractions."""

    def __init__(self, state: Array, axis: Axis):
        self.state = state
        self.axis = axis

    def _contracted(self, expression: str, edge: Array, x: Array, other: Array) -> Array:
        return einsum(expression, edge, self.state, differentiated(self.axis, x), other)

    def left(self, edge: Array, y: Array, x: Array) -> Array:
        return self._contracted("yax,apb,pxnt,yns->sbt", edge, x, y)

    def right(self, edge: Array, y: Array, x: Array) -> Array:
        return self._contracted("sbt,apb,pxnt,yns->yax", edge, x, y)

    def apply(self, left: Array, right: Array, x: Array) -> Array:
        return self._contracted("yax,apb,pxnt,sbt->yns", left, x, right)


class _Dense:
    """One mode of a TT-matrix in a splitting or BUG step, with its contractions."""

    def __init__(self, core: Array):
        self.core = core

    def left(self, edge: Array, y: Array, x: Array) -> Array:
        return interfaces.left(edge, y, self.core, x)

    def right(self, edge: Array, y: Array, x: Array) -> Array:
        return interfaces.right(edge, y, self.core, x)

    def apply(self, left: Array, right: Array, x: Array) -> Array:
        return interfaces.apply_one(left, self.core, right, x)


class _Source:
    """One mode of a PDE's source train in a splitting or BUG step, with its contractions."""

    def __init__(self, core: Array):
        self.core = core

    def left(self, edge: Array, y: Array, x: Array) -> Array:
        return interfaces.left_overlap(edge[:, 0], y, self.core)[:, None]

    def right(self, edge: Array, y: Array, x: Array) -> Array:
        return interfaces.right_overlap(edge[:, 0], y, self.core)[:, None]

    def apply(self, left: Array, right: Array, x: Array) -> Array:
        return einsum("yx,xnt,st->yns", left[:, 0], self.core, right[:, 0])


class _Parts:
    """Operators and source of a PDE, split into one part for each mode, for splitting and BUG."""

    def __init__(self, rates: Rates):
        self.order = rates.box.dim
        rows: list[list[Any]] = []
        if rates.affine is not None:
            states = affine_states(rates.box, rates.affine)
            pairs = zip(states, rates.box.axes, strict=True)
            rows.append([_Affine(s, a) for s, a in pairs])
        rows.extend([_Dense(c) for c in cores] for cores in rates.others)
        if rates.source is not None:
            rows.append([_Source(c) for c in rates.source])
        self.rows = rows

    def edges(self) -> list[Array]:
        return [np.ones((1, 1, 1)) for _ in self.rows]

    def left(self, k: int, edges: Sequence[Array], y: Array) -> list[Array]:
        return [row[k].left(e, y, y) for row, e in zip(self.rows, edges, strict=True)]

    def right(self, k: int, edges: Sequence[Array], y: Array) -> list[Array]:
        return [row[k].right(e, y, y) for row, e in zip(self.rows, edges, strict=True)]

    def on_core(self, k: int, lefts: Sequence[Array], rights: Sequence[Array]) -> Any:
        """Returns the ODE right side of core k in a splitting or BUG step, from environments."""
        parts = list(zip(self.rows, lefts, rights, strict=True))
        return lambda x: sum(row[k].apply(a, b, x) for row, a, b in parts)

    def on_bond(self, lefts: Sequence[Array], rights: Sequence[Array]) -> Any:
        """Returns the ODE right side of a bond matrix in a splitting step, from environments."""

        def apply(s: Array) -> Array:
            total = np.zeros_like(s)
            for row, a, b in zip(self.rows, lefts, rights, strict=True):
                if isinstance(row[0], _Source):
                    total = total + a[:, 0] @ b[:, 0].T
                else:
                    total = total + einsum("yax,xt,sat->ys", a, s, b)
            return total

        return apply


def _evolved(f: Callable[[Array], Any], x: Array, dt: float) -> Array:
    """Integrates a core's ODE ẋ = f(x) of a splitting or BUG step by the Runge–Kutta method."""
    k1 = f(x)
    k2 = f(x + dt / 2 * k1)
    k3 = f(x + dt / 2 * k2)
    k4 = f(x + dt * k3)
    return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def _widened(rates: Rates, v: Cores, dt: float, trim: Trim, share: float) -> Cores:
    """Augments a train's bases by those of a PDE's right side, for a BUG step."""
    terms = rates.terms(v, trim.tol) or [nothing(v)]
    scale = float(np.linalg.norm(v[0])) / dt
    slope = trim("slope", terms, [1.0] * len(terms), share=share, scale=scale).cores
    both = products.combined([v, [0 * slope[0], *slope[1:]]], [1.0, 1.0])
    return right_orthogonal(both, scale=False)[0]


def _begun(at: Clock, v: Cores, dt: float, trim: Trim, estimate: bool) -> tuple[_Parts, Cores]:
    """Prepares a splitting or BUG step: right side at midpoint, and v with augmented bases."""
    rates = at(0.5)
    if not rates.linear:
        terms = rates.terms(v, STAGE * trim.tol)
        middle = trim("middle", [Train(v), *terms], [1.0, *[dt / 2] * len(terms)]).cores
        rates = rates.frozen(middle, STAGE * trim.tol)
    # The error of the bases is part of the estimate, and should not use up all of the tolerance.
    share = STAGE if estimate else 1.0
    return _Parts(rates), _widened(rates, v, dt, trim, share)


def _rights(parts: _Parts, v: Cores) -> list[list[Array]]:
    """Computes the right environments of all TT-cores for the projector-splitting integrator."""
    out = [parts.edges()]
    for k in range(len(v) - 1, 0, -1):
        out.append(parts.right(k, out[-1], v[k]))
    return out[::-1]


def _ended(at: Clock, v: Cores, new: Cores, dt: float, trim: Trim, estimate: bool) -> Step:
    """Ends a projector-splitting or BUG step: truncates its result and estimates its error."""
    out = trim.kept(truncated(new, trim.tol, trim.cap)[0], trim.moments(Train(new)))
    if not (estimate and np.isfinite(out.norm)):
        return Step(out)
    tol = STAGE * trim.tol
    slopes = [*at(0.0).terms(v, tol), *at(1.0).terms(new, tol)]
    weights = [1.0, -1.0, *[-dt / 2] * len(slopes)]
    return Step(out, relative_norm([Train(new), Train(v), *slopes], weights, Train(new)))


def bug(at: Clock, v: Cores, dt: float, trim: Trim, estimate: bool, past: Any) -> Step:
    """Advances a tensor train by one rank-adaptive basis-update and Galerkin (BUG) step."""
    parts, wide = _begun(at, v, dt, trim, estimate)
    rights = _rights(parts, wide)
    lefts = parts.edges()
    out: Cores = []
    core = wide[0]
    for k in range(len(v) - 1):
        new = _evolved(parts.on_core(k, lefts, rights[k]), core, dt)
        out.append(left_qr(np.concatenate([core, new], 2))[0])
        lefts = parts.left(k, lefts, out[-1])
        core = absorb(bond_overlap(out[-1], core), wide[k + 1])
    last = _evolved(parts.on_core(len(v) - 1, lefts, rights[-1]), core, dt)
    return _ended(at, v, [*out, last], dt, trim, estimate)


def projector_splitting(
    at: Clock, v: Cores, dt: float, trim: Trim, estimate: bool, past: Any
) -> Step:
    """Advances a tensor train by one symmetric projector-splitting step, order 2."""
    parts, wide = _begun(at, v, dt, trim, estimate)
    cores, lefts = _forth(parts, wide, dt / 2)
    first, *others = _back(parts, cores, lefts, dt / 2)
    left: Cores = []
    for c in others:
        q, r = left_qr(first)
        left.append(q)
        first = absorb(r, c)
    return _ended(at, v, [*left, first], dt, trim, estimate)


def _forth(parts: _Parts, v: Cores, dt: float) -> tuple[Cores, list[list[Array]]]:
    """Sweeps the projector splitting from first to last TT-core; also returns left environments."""
    rights, lefts = _rights(parts, v), [parts.edges()]
    out: Cores = []
    core = v[0]
    for k in range(len(v) - 1):
        core = _evolved(parts.on_core(k, lefts[k], rights[k]), core, dt)
        q, s = left_qr(core)
        out.append(q)
        lefts.append(parts.left(k, lefts[k], out[-1]))
        # Back in time: the projection on a bond has a minus sign in that on the tangent space.
        s = _evolved(parts.on_bond(lefts[k + 1], rights[k]), s, -dt)
        core = absorb(s, v[k + 1])
    last = _evolved(parts.on_core(len(v) - 1, lefts[-1], rights[-1]), core, dt)
    return [*out, last], lefts


def _back(parts: _Parts, v: Cores, lefts: Sequence[Sequence[Array]], dt: float) -> Cores:
    """Sweeps the projector splitting over the TT-cores from last to first."""
    rights = parts.edges()
    out: Cores = []
    core = v[-1]
    for k in range(len(v) - 1, 0, -1):
        core = _evolved(parts.on_core(k, lefts[k], rights), core, dt)
        r, q = right_lq(core)
        out.append(q)
        rights = parts.right(k, rights, q)
        s = _evolved(parts.on_bond(lefts[k], rights), r, -dt)
        core = times_right(v[k - 1], s)
    return [_evolved(parts.on_core(0, lefts[0], rights), core, dt), *out[::-1]]
