"""AMEn for linear systems, on lists of NumPy cores.

One pass goes over the train from left to right and solves on one site after the other; the next
one does the same on the mirrored train, so that there is only one direction to write down.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorjax import linalg
from tensorjax._cores import Cores, absorb, cut_ranks, tall, times_right
from tensorjax.tt import _hosted as hosted
from tensorjax.tt._interfaces import apply_one, edge, left, left_overlap, right, right_overlap
from tensorjax.tt._local import PRECONDITIONERS, Apply, Local, gmres, solve_dense

Array = Any


@dataclasses.dataclass
class State:
    """Trains and interfaces of A x = b; x and z are orthogonal around the site in hand.

    Attributes:
      a: cores of A, and those of its mirror image.
      b: cores.
      x: the solution.
      z: a train of low rank near the residual.
      xax, xb, zax, zb: interfaces at the bonds 0 … d.
    """

    a: tuple[Cores, Cores]
    b: Cores
    x: Cores
    z: Cores
    xax: Cores
    xb: Cores
    zax: Cores
    zb: Cores

    def mirrored(self) -> "State":
        """The same trains from the other end."""
        return State(
            self.a[::-1],
            *(_mirrored(t) for t in (self.b, self.x, self.z)),
            *(i[::-1] for i in (self.xax, self.xb, self.zax, self.zb)),
        )

    def copy(self) -> "State":
        """Lists of their own; the arrays in them are never changed in place."""
        return State(self.a, self.b, *(list(getattr(self, n)) for n in _LISTS))


_LISTS = ("x", "z", "xax", "xb", "zax", "zb")


def _mirrored(cores: Cores) -> Cores:
    return [np.ascontiguousarray(c.swapaxes(0, -1)) for c in reversed(cores)]


@dataclasses.dataclass(frozen=True)
class Options:
    """How the local systems are solved and the bonds cut."""

    max_rank: int
    direct: int  # systems of up to so many unknowns are solved by elimination
    precondition: Callable[[Local], Apply]


@dataclasses.dataclass
class Pass:
    """What one pass saw."""

    residual: float = 0.0  # the largest projection of the residual that was met
    iterations: int = 0
    singular: bool = False


def start(a: Cores, b: Cores, x: Cores, z: Cores) -> State:
    """State with its center at the first site; x and z must be right-orthogonal."""
    d = len(a)
    one, pair = edge(b[0]), edge(b[0], operator=False)
    s = State((a, _mirrored(a)), b, x, z, *([m] * (d + 1) for m in (one, pair, one, pair)))
    for k in range(d - 1, 0, -1):
        s.xax[k] = right(s.xax[k + 1], x[k], a[k], x[k])
        s.zax[k] = right(s.zax[k + 1], z[k], a[k], x[k])
        s.xb[k] = right_overlap(s.xb[k + 1], x[k], b[k])
        s.zb[k] = right_overlap(s.zb[k + 1], z[k], b[k])
    return s


def sweep(s: State, tol: float, options: Options, *, enrich: bool) -> Pass:
    """One pass from left to right, in place: solves, cuts and enriches; ``tol`` is for one site."""
    seen, d = Pass(), len(s.x)
    a = s.a[0]
    for k in range(d):
        local = Local(s.xax[k], a[k], s.xax[k + 1])
        solution = _solved(s, k, local, tol, options, seen)
        if k == d - 1:
            s.x[k] = solution
            break
        u, carry = _cut(local, solution, tol, options.max_rank)
        if enrich:
            u, carry = _enriched(s, k, u, carry, seen)
        s.x[k] = u
        s.x[k + 1] = absorb(carry, s.x[k + 1])
        s.xax[k + 1] = left(s.xax[k], u, a[k], u)
        s.xb[k + 1] = left_overlap(s.xb[k], u, s.b[k])
        if enrich:
            s.zax[k + 1] = left(s.zax[k], s.z[k], a[k], u)
            s.zb[k + 1] = left_overlap(s.zb[k], s.z[k], s.b[k])
    return seen


def _projected(lefts: Array, b: Array, rights: Array) -> Array:
    """b between interfaces ⟨y|b⟩."""
    return times_right(absorb(lefts, b), rights.T)


def _solved(s: State, k: int, local: Local, tol: float, options: Options, seen: Pass) -> Array:
    x = s.x[k]
    rhs = _projected(s.xb[k], s.b[k], s.xb[k + 1])
    residual = rhs - local(x)
    norm = float(np.linalg.norm(residual))
    seen.residual = max(seen.residual, norm)
    if norm <= tol / 2:
        return x
    if x.size <= options.direct or x.size == x.shape[1]:
        step, singular = solve_dense(local, residual)
        seen.singular |= singular
        return x + step
    step, _, count = gmres(local, residual, options.precondition(local), tol / 2)
    seen.iterations += count
    return x + step


def _cut(local: Local, x: Array, tol: float, max_rank: int) -> tuple[Array, Array]:
    """x = u · carry with orthonormal u, of the least rank that adds no more than tol to ‖B x‖.

    The images of all singular terms but for their right vectors cost half a product with B, and
    their Gram matrix gives the residual of every rank.
    """
    q, r = linalg.qr(tall(x))
    u, sigma, vh = linalg.svd(r)
    u = (q @ u).reshape(*x.shape[:2], -1)
    carry = sigma[:, None] * vh
    t = np.tensordot(np.tensordot(local.lefts, u, (2, 0)), local.core, ((1, 2), (0, 2)))
    t = t.transpose(0, 2, 1, 3).reshape(-1, u.shape[-1] * local.core.shape[-1])  # (y m, i b)
    gram = (linalg.adjoint(t) @ t).reshape(u.shape[-1], -1, u.shape[-1], local.core.shape[-1])
    w = np.tensordot(local.rights, carry, (2, 1))  # (y', b, i)
    weights = w.transpose(2, 1, 0).reshape(-1, w.shape[0])  # (i b, y')
    weights = (weights.conj() @ weights.T).reshape(gram.shape)
    images = (gram * weights).sum((1, 3)).real
    added = np.cumsum(np.cumsum(images[::-1, ::-1], 0), 1).diagonal()[::-1]
    small = np.flatnonzero(added[1:] <= tol**2)  # added[r] is what cutting to rank r adds
    rank = min(int(small[0]) + 1 if small.size else len(added), max_rank)
    return u[..., :rank], carry[:rank]


def _enriched(s: State, k: int, u: Array, carry: Array, seen: Pass) -> tuple[Array, Array]:
    """Adds the residual, as z sees it from the right, to the basis; and renews z."""
    a, b = s.a[0][k], s.b[k]
    x = times_right(u, carry)
    z = _projected(s.zb[k], b, s.zb[k + 1]) - apply_one(s.zax[k], a, s.zax[k + 1], x)
    extra = _projected(s.xb[k], b, s.zb[k + 1]) - apply_one(s.xax[k], a, s.zax[k + 1], x)
    seen.residual = max(seen.residual, *(float(np.linalg.norm(e)) for e in (z, extra)))
    s.z[k] = linalg.qr(tall(z))[0].reshape(*z.shape[:2], -1)
    q, r = linalg.qr(np.concatenate([tall(u), tall(extra)], 1))
    carry = r[:, : u.shape[-1]] @ carry
    return q.reshape(*u.shape[:2], -1), carry


def balanced(a: Cores, x: Cores) -> tuple[Cores, int]:
    """A over 2^e, with interfaces of size one between the right-orthogonal cores of x; and e."""
    out, exponent = list(a), 0
    interface = edge(x[0])
    for k in range(len(a) - 1, -1, -1):
        interface = right(interface, x[k], a[k], x[k])
        size = np.abs(interface).max() or np.abs(a[k]).max()
        e = int(np.frexp(size)[1]) if size > 0 else 0
        out[k], interface = a[k] * 2.0**-e, interface * 2.0**-e
        exponent += e
    return out, exponent


def run(a, b, x, tol, options, kick, max_sweeps, verbose=True):
    rng = np.random.default_rng(0)
    d = len(a)
    ranks = cut_ranks((1, *[kick] * (d - 1), 1), [c.shape[1] for c in b])
    z = [rng.uniform(-1, 1, (ranks[k], b[k].shape[1], ranks[k + 1])).astype(b[0].dtype) for k in range(d)]
    z = hosted.right_orthogonal(z)[0]
    s = start(a, b, x, z)
    site = tol / np.sqrt(d)
    import time
    t0 = time.perf_counter()
    for n in range(max_sweeps):
        seen = sweep(s, site, options, enrich=True)
        s = s.mirrored()
        if verbose:
            print(n, seen, max(len(c) for c in s.x), f"{time.perf_counter()-t0:.3f}")
        if seen.residual <= tol:
            c = s.copy()
            seen = sweep(c, site, options, enrich=False)
            t1 = time.perf_counter()
            r = hosted.distance(hosted.product(c.a[0], c.x), c.b)
            r2 = hosted.distance(hosted.product(s.a[0], s.x), s.b)
            print("close", seen, r, r2, [len(q) for q in c.x], t1 - t0, time.perf_counter() - t1)
            if min(r, r2) <= tol:
                break
    return s
