"""Leading singular subspaces of host matrices: random sketch, Gram matrix or SVD, by cost.

A matrix whose smaller side is long is first sketched with a few random columns. Where the range of
the sketch captures the energy to be kept, which is measured, the Gram matrix and its eigenvectors,
many times the work, are skipped. Elsewhere they are computed; the cost of the failed sketch is kept
small beside theirs. Small matrices have functions of their own, with less overhead: one Gram matrix
in double precision, with no choice between methods and no attempt that may fail.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from tensorjax import _blas_threads
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import CPP, HOST
from tensorjax.linalg import _predicted_times
from tensorjax.linalg._arrays import adjoint, epsilon
from tensorjax.linalg._gram import host_energy, host_gram
from tensorjax.linalg._qr import orthonormalized, qr
from tensorjax.linalg._subspaces.method_choice import (
    GRAM_ERROR,
    GRAM_NOISE,
    Method,
    admitted,
    gram_floor,
)
from tensorjax.linalg._svd_eigh_polar import eigh, svd

# Number of entries converted to a wider dtype at a time.
_WIDENED = 2**18
# Energies beside the largest from which on singular vectors recovered from the other side's need
# no more than one small correction.
_CLEAN = 1e-8
# Threads of a BLAS slow down work on arrays with fewer entries than this.
THREADS = 2**18
# Smaller matrices go to an SVD at once: a call costs more than the work.
_TINY = 2**12
# Smallest number of columns of a sketch.
_LEAST_COLUMNS = 16
# Largest cost of a sketch as a share of the exact method: where the rank is unknown, and where it
# is expected to be below half the columns.
_BLIND, _HOPEFUL = 0.15, 0.6
# Largest cost of the sample of a wider sketch as a share of the exact method.
_SAMPLE = 0.06
# Rows over columns up to which a matrix counts as square: the subspace of its rows costs products
# for the basis of the columns.
SQUARE = 1.1
# Number of columns on which a sketch is tested first; and the multiple of the allowed energy beyond
# which a subspace iteration cannot repair it.
_OTHERS, _HOPELESS = 32, 50
# Residual energies are computed as a difference of energies where the tail allowed is this many
# eps of the total; elsewhere the residual itself is computed.
_SUBTRACTED = 1e4
# From _WHOLE rows on a Cholesky factorisation, which tests for full rank, takes a small part of the
# eigenvectors' time. From _SKETCHED rows on a random sketch of a small matrix may be cheaper.
_WHOLE, _SKETCHED = 32, 96
# Up to this many rows, threads of a BLAS slow an eigenproblem down. Gram matrices of as many rows
# gain nothing from them below the second number of entries.
_ONE_THREAD, _MIDDLING = 256, 2**21
# Rows from which on eigenvectors are computed in single precision, if that will do.
_HALVED = 257


class Subspace(NamedTuple):
    """Result of a leading-subspace search on the host: basis, energies, discarded energy.

    Attributes:
      basis: (m, r) columns; the identity if all of them are needed and no others were asked for.
      energies: (r,) squared singular values, descending; None of an identity.
      discarded: energy outside the subspace.
      total: ‖a‖_F².
      gram: the Gram matrix of an identity, if it has been summed in double precision.
    """

    basis: Any
    energies: Any
    discarded: float
    total: float
    gram: Any = None


class Asked(NamedTuple):
    """Truncation criterion for subspaces on the host: energy to discard, largest rank, precision.

    Attributes:
      share: the share of ‖a‖_F² that may be discarded; None if ``tail`` says it, or nothing.
      tail: the energy that may be discarded.
      cap: the largest rank, if there is one.
      method: "auto", "gram" or "svd", as `tensorjax.linalg.choose` admits them.
      narrow: whether float32 and complex64 suffice for projections.
      coarse: whether they suffice for Gram matrices too.
      guess: the rank that is expected, if something is known of it.
      part: of what may be discarded, that is; the rest is left to cuts of the basis itself.
      whole: whether an identity will do for a basis where nothing can be discarded.
    """

    share: float | None = None
    tail: float | None = None
    cap: int | None = None
    method: Method = "auto"
    narrow: bool = False
    coarse: bool = False
    guess: int | None = None
    part: float = 1.0
    whole: bool = False


def asked_of(method: Method, share: float | None, given: Any) -> Asked:
    """Builds the truncation criterion `Asked` of a host subspace from share and method."""
    chosen = admitted(method, share, np.result_type(given, np.float64))
    if method == "auto" and (share is None or chosen != "svd"):
        return Asked(share=share)
    return Asked(share=share, method="gram" if chosen == "randomized" else chosen)


def leading(a: np.ndarray, asked: Asked, *, right: bool = False) -> Subspace:
    """Computes the leading left or right singular subspace of a host matrix, by NumPy.

    Args:
      a: (m, n).
      asked: what is to be kept.
      right: the subspace of the rows of ``a``: a ≈ a v vᴴ, with the columns of v for a basis.
    """
    with _blas_threads.one_thread(alone(a, right)):
        return _leading(a, asked, right)


def alone(a: np.ndarray, right: bool = False) -> bool:
    """Whether a host matrix's subspace should be computed with one BLAS thread."""
    side = a.shape[1] if right else a.shape[0]
    few = side <= _ONE_THREAD and (
        a.size < _MIDDLING or (not right and choose_kernel("linalg.project", (a,), HOST) is CPP)
    )
    return few or a.size < THREADS


def _leading(a: np.ndarray, asked: Asked, right: bool) -> Subspace:
    if asked.method == "svd":
        return _exact(a, asked, right)
    columns = _columns(a, asked, right)
    if columns and (found := sketched(a, asked, right, columns)):
        return found
    g = host_gram(a, right=right, narrow=asked.coarse)
    with _blas_threads.one_thread(len(g) <= _ONE_THREAD):
        if asked.whole and all_needed(g, asked):
            total = float(np.trace(g).real)
            sharp = None if asked.coarse else g
            return Subspace(np.eye(len(g), dtype=g.dtype), None, 0.0, total, sharp)
        w, v = _eigenbasis(g, a.dtype, asked)
    w = np.maximum(w, 0)
    if _too_coarse(w, asked):
        return _cut_in_gap(w, v, asked) or _refined(a, w, v, asked, right)
    return _cut(w, v, asked)


def _eigenbasis(g: np.ndarray, given: Any, asked: Asked) -> tuple[np.ndarray, np.ndarray]:
    """Computes the eigenbasis of a host subspace's Gram matrix, in single precision if enough.

    NumPy converts to double precision and back for them; SciPy does not, and large problems take
    half the time.
    """
    total = float(np.trace(g).real)
    # Eigenvalues have errors of some eps of the largest: the sum of them must not look like rank.
    blurred = _tail(total, asked) < len(g) * epsilon(given) * total
    if not asked.coarse or len(g) < _HALVED or blurred or not total > 0:
        return eigh(g)
    small = (g / total).astype(given)  # squares may be out of the narrower range
    w, v = scipy.linalg.eigh(small, driver="evd", check_finite=False)
    return total * w[::-1].astype(np.float64), v[:, ::-1]


def _tail(total: float, asked: Asked) -> float:
    if asked.share is None:
        return -1.0 if asked.tail is None else asked.tail
    return asked.share * total


def all_needed(g: np.ndarray, asked: Asked) -> bool:
    """Whether a subspace of a host matrix keeps all directions, as no eigenvalue is small.

    Of a matrix of low rank the factorisation breaks down early, and so costs even less.
    """
    if len(g) < _WHOLE or (asked.cap is not None and asked.cap < len(g)):
        return False
    total = float(np.trace(g).real)
    tail = _tail(total, asked) + GRAM_NOISE * gram_floor(g.dtype, 1) * total
    if _tail(total, asked) < 0 or not np.real(np.diagonal(g)).min() > tail:
        return False
    shifted = g.copy()
    shifted.reshape(-1)[:: len(g) + 1] -= tail
    # By NumPy: `one_thread` does not limit SciPy's BLAS, whose threads take ten times the work.
    try:
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        return False
    return True


def _too_coarse(w: np.ndarray, asked: Asked) -> bool:
    """Whether one Gram matrix of a host matrix cannot resolve energies to be discarded."""
    floor = gram_floor(w.dtype, 1)
    tail = _tail(1.0 if asked.share else float(w.sum()), asked)
    if tail >= 0:
        return tail < 2 * GRAM_NOISE * floor * (1.0 if asked.share else float(w.sum()))
    rank = min(asked.cap or len(w), len(w))
    return bool(w[rank - 1] < 4 * floor * w[0])


def recut(basis: np.ndarray, energies: np.ndarray, asked: Asked) -> Subspace | None:
    """Truncates the leading subspace of a host matrix by known energies; None if inaccurate."""
    if asked.method != "svd" and _too_coarse(energies, asked):
        return None
    return _cut(energies, basis, asked)


def _cut(w: np.ndarray, v: np.ndarray, asked: Asked) -> Subspace:
    """Truncates a subspace on the host to the fewest eigenvectors that meet the criterion."""
    suffix = np.cumsum(w[::-1])
    total = float(suffix[-1])
    noise = 0.0 if asked.method == "svd" else GRAM_NOISE * gram_floor(w.dtype, 2)
    allowed = asked.part * _tail(total, asked)
    dropped = 0
    if allowed >= 0:
        dropped = int(np.searchsorted(suffix, max(allowed - noise * total, 0), side="right"))
    rank = max(len(w) - dropped, 1)
    rank = rank if asked.cap is None else min(rank, asked.cap)
    lost = float(suffix[len(w) - rank - 1]) if rank < len(w) else 0.0
    return Subspace(v[:, :rank], w[:rank], lost, total)


def _cut_in_gap(w: np.ndarray, v: np.ndarray, asked: Asked) -> Subspace | None:
    """Truncates a subspace on the host by energies near roundoff, if none is near the tail.

    Energies are wrong by a few eps of the total: where those that go add up to less than the tail
    in spite of that, and the least that stays is larger than it, the rank is that of exact ones.
    """
    suffix = np.cumsum(w[::-1])
    total = float(suffix[-1])
    allowed, eps = asked.part * _tail(total, asked), gram_floor(w.dtype, 1) * total
    dropped = int(np.searchsorted(suffix, allowed - GRAM_ERROR * eps, side="right"))
    rank = len(w) - dropped
    if not rank or not w[rank - 1] > allowed + GRAM_NOISE * eps:
        return None
    if asked.cap is not None and rank > asked.cap:
        return None
    return Subspace(v[:, :rank], w[:rank], float(suffix[dropped - 1]) if dropped else 0.0, total)


def _refined(a: np.ndarray, w: np.ndarray, v: np.ndarray, asked: Asked, right: bool) -> Subspace:
    """Recomputes weak directions of a host subspace from the Gram matrix of the residual."""
    total = float(w.sum())
    strong = int(np.count_nonzero(w > epsilon(w.dtype) ** 0.5 * w[0])) or 1
    u = v[:, :strong]
    rest = _rest(a, u, _image(a, u, right), right)
    lost = host_energy(rest)
    tail = asked.part * _tail(total, asked)
    if lost <= tail:
        given = asked._replace(share=None, tail=tail - lost, part=1.0)
        return _more(_cut(w[:strong], u, given), lost, total)
    weak, turned = eigh(host_gram(rest, right=right))
    weak = np.maximum(weak, 0)[: len(w) - strong]
    energies = np.concatenate([w[:strong], weak])
    found = _cut(energies, np.zeros((0, len(energies))), asked)
    kept = len(found.energies)
    if kept <= strong:
        return found._replace(basis=u[:, :kept])
    new = turned[:, : kept - strong]
    for _ in range(2):  # roundoff of the strong directions is all that some of the weak ones have
        new = qr(new - u @ (adjoint(u) @ new))[0]
    return found._replace(basis=np.concatenate([u, new], 1))


def _more(found: Subspace, lost: float, total: float) -> Subspace:
    return found._replace(discarded=found.discarded + lost, total=total)


def _exact(a: np.ndarray, asked: Asked, right: bool) -> Subspace:
    """Computes a leading singular subspace of a host matrix by an SVD."""
    a = adjoint(a) if right else a
    a = a.astype(np.result_type(a.dtype, np.float64), copy=False)
    m, n = a.shape
    if a.size < _TINY:
        u, s, _ = svd(a)
        return _cut(s**2, u, asked)
    if m > n:
        q, r = qr(a)
        u, s, _ = svd(r)
        return _cut(s**2, q @ u, asked)
    u, s, _ = svd(adjoint(qr(adjoint(a))[1]) if n > 2 * m else a)
    return _cut(s**2, u, asked)


def _columns(a: np.ndarray, asked: Asked, right: bool) -> int:
    """Returns the width of a random sketch of a host matrix; 0 if its Gram matrix is faster."""
    rows = a.shape[1] if right else a.shape[0]
    if rows < 4 * _LEAST_COLUMNS or (asked.share, asked.tail) == (None,) * 2:
        return 0
    guess = rows // 4 if asked.guess is None else asked.guess
    known = asked.guess is not None and 4 * guess <= rows
    exact = _predicted_times.cut(a.size, rows, min(guess, rows // 4))
    most = min(rows // 3, 3 * guess + _LEAST_COLUMNS) if known else rows // 8
    passes = 4 if _tail(1.0, asked) < _SUBTRACTED * epsilon(a.dtype) else 3
    for columns in (most, most // 2, most // 4, most // 8, most // 16):
        if columns < _LEAST_COLUMNS:
            return 0
        if _predicted_times.sketched(a.size, columns, passes) <= exact * (
            _HOPEFUL if known and columns > 2 * guess else _BLIND
        ):
            return columns
    return 0


def sketched(a: np.ndarray, asked: Asked, right: bool, columns: int) -> Subspace | None:
    """Computes a leading subspace of a host matrix by a random sketch; None if too inaccurate.

    Where so many columns are too few, wider sketches are tried while they are cheap.

    Source: Halko, Martinsson, Tropp, SIAM Rev. 53 (2011), algorithm 4.4. Departures, ours: the
    sketch sees some of the columns only, which costs no pass; what it misses is measured.
    """
    while columns:
        q, missed = _sampled(a, right, columns)
        if found := _projected(a, asked, right, q, missed):
            return found
        columns = _wider(a, asked, right, columns, missed)
    return None


def _wider(a: np.ndarray, asked: Asked, right: bool, columns: int, missed: float) -> int:
    """Returns the width of a host matrix's next random sketch, after one that was too narrow.

    0 if its rank looks too high. A sketch of c columns misses the share 1 − c/r of a flat spectrum
    of rank r. A failure costs the sample alone, which is what side² · columns takes.
    """
    rows = a.shape[1] if right else a.shape[0]
    more = max(2 * columns, int(1.25 * columns / max(1 - missed, 1e-3)) + _LEAST_COLUMNS)
    if more > rows // 3:
        return 0
    exact = _predicted_times.cut(a.size, rows, more // 2)
    passes = 4 if _tail(1.0, asked) < _SUBTRACTED * epsilon(a.dtype) else 3
    sample = _predicted_times.product(rows * (3 * more + _OTHERS), more)
    cheap = _predicted_times.sketched(a.size, more, passes) <= _HOPEFUL * exact
    return more if cheap and sample <= _SAMPLE * exact else 0


def _projected(
    a: np.ndarray, asked: Asked, right: bool, q: np.ndarray, missed: float
) -> Subspace | None:
    """Computes the leading subspace of a host matrix within a sketched range, or a better one."""
    columns = q.shape[1]
    if asked.share is not None and missed > _HOPELESS * asked.share:
        return None
    total = host_energy(a)
    tail = _tail(total, asked)
    if missed * total > _HOPELESS * tail:
        return None
    for enough in (
        0.25,
        1.0,
    ):  # of the tail, to be lost by the sketch: better ones follow the first
        b = _image(a, q, right)
        lost = _residual(a, q, b, total, right, tail)
        if lost <= enough * tail:
            inner = asked._replace(
                share=None, tail=tail - lost, part=1.0, method="gram", narrow=False, whole=False
            )
            small = leading(b, inner)
            if len(small.energies) <= columns - columns // 8:
                small = small._replace(basis=q @ small.basis.astype(q.dtype))
                return _more(small, lost, total)
        if enough < 1:
            q = orthonormalized(_back(a, b, right))[0]
    return None


def _sampled(a: np.ndarray, right: bool, columns: int) -> tuple[np.ndarray, float]:
    """Sketches a host matrix's range from some of its columns; estimates the energy missed.

    Of rows, conjugated, if ``right``.
    """
    rng = np.random.default_rng(0)
    count = a.shape[0] if right else a.shape[1]
    chosen = rng.choice(count, min(count, 2 * columns + _OTHERS), replace=False)
    some = adjoint(a[chosen]) if right else a[:, chosen]
    mixed, others = some[:, _OTHERS:], some[:, :_OTHERS]
    draw = rng.uniform(-1, 1, (mixed.shape[1], columns)).astype(np.finfo(a.dtype).dtype)
    q = orthonormalized(mixed @ draw)[0]
    seen = host_energy(others)
    return q, host_energy(others - q @ (adjoint(q) @ others)) / seen if seen > 0 else 0.0


def _image(a: np.ndarray, q: np.ndarray, right: bool) -> np.ndarray:
    """Projects a host matrix on a basis q: qᴴ a, or qᴴ aᴴ if ``right``."""
    return adjoint(a @ q) if right else adjoint(q) @ a


def _back(a: np.ndarray, b: np.ndarray, right: bool) -> np.ndarray:
    """Computes the next block of a host subspace iteration: a bᴴ, or aᴴ bᴴ if ``right``."""
    return adjoint(b @ a) if right else a @ adjoint(b)


def _residual(
    a: np.ndarray, q: np.ndarray, b: np.ndarray, total: float, right: bool, tail: float
) -> float:
    """Computes the squared norm of a host matrix's residual a − q b, or aᴴ − q b if ``right``."""
    if tail >= _SUBTRACTED * epsilon(a.dtype) * total:
        return max(total - host_energy(b), 0.0)
    return host_energy(_rest(a, q, b, right))


def _rest(a: np.ndarray, q: np.ndarray, b: np.ndarray, right: bool) -> np.ndarray:
    """Computes the residual of a host matrix's subspace q: a − q b, or a − (q b)ᴴ if ``right``."""
    return a - (adjoint(b) @ adjoint(q) if right else q @ b)


def is_tall(matrix: np.ndarray) -> bool:
    """Whether a host matrix has many more rows than columns: right vectors are computed first."""
    return matrix.shape[0] > SQUARE * matrix.shape[1]


def columns_split(a: Any, found: Subspace, dtype: Any) -> tuple[Any, Any]:
    """Factorises a host matrix a ≈ q r, truncated to a known right singular subspace."""
    basis = found.basis.astype(dtype, copy=False)
    if found.energies is None:
        return orthonormalized(a, found.gram)
    q, r = _scaled_columns(times(a, basis), found.energies, a.dtype)
    return q, r @ adjoint(basis)


def times(a: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Multiplies a host matrix by a subspace's basis in the basis's precision, piece by piece."""
    if a.dtype == v.dtype:
        return a @ v
    out = np.empty((a.shape[0], v.shape[1]), v.dtype)
    step = max(1, _WIDENED // a.shape[1])
    for start in range(0, len(a), step):
        out[start : start + step] = a[start : start + step].astype(v.dtype) @ v
    return out


def _scaled_columns(a: Any, energies: Any, dtype: Any) -> tuple[Any, Any]:
    """Orthonormalises a host basis, a = q r, of nearly orthogonal columns of known energies."""
    if not energies[-1] > _CLEAN * energies[0]:
        return orthonormalized(a)
    s = np.sqrt(energies)
    u = a * (1 / s).astype(a.dtype)
    # The columns are orthogonal but for roundoff over s².
    if epsilon(a.dtype) * energies[0] < 10 * epsilon(dtype) * energies[-1]:
        return u, np.diag(s.astype(a.dtype))
    g = host_gram(u, right=True)
    # Of I + E, for small E, the Cholesky factor is I + the upper half of E, but for squares of E.
    half = np.triu(g - np.eye(len(g)))
    half.reshape(-1)[:: len(g) + 1] /= 2
    if host_energy(half) < epsilon(dtype) / 4:
        q = u - u @ half.astype(a.dtype)
        return q, ((half + np.eye(len(g))) * s).astype(a.dtype)
    lower = np.linalg.cholesky(g)
    q = u @ adjoint(np.linalg.inv(lower)).astype(a.dtype)
    return q, (adjoint(lower) * s).astype(a.dtype)


@functools.cache
def least_share(dtype: Any) -> float:
    """Returns the least share of energy that a Gram matrix of a small host array can discard."""
    return 2 * GRAM_NOISE * gram_floor(np.result_type(dtype, np.float64), 1)


@functools.cache
def least_share_of_gaps(dtype: Any) -> float:
    """Returns the least share that the Gram matrix of a host array can discard next to a gap.

    See `_cut_in_gap`: beyond its error, something has to be left for what is discarded.
    """
    return 1.25 * GRAM_ERROR * gram_floor(np.result_type(dtype, np.float64), 1)


def small_leading(a: np.ndarray, asked: Asked, *, right: bool = False) -> Subspace:
    """Computes the leading left or right singular subspace of a small NumPy matrix.

    Args:
      a: (m, n), of double precision.
      asked: ``tail``, the energy that may be discarded; ``whole``, to test for the full rank first.
      right: the subspace of the rows of ``a``.
    """
    if a.shape[right] >= _SKETCHED:
        return leading(a, asked, right=right)
    return of_gram(host_gram(a, right=right), asked)


def of_gram(g: np.ndarray, asked: Asked) -> Subspace:
    """Computes the leading subspace of a small host matrix from its Gram matrix."""
    side = len(g)
    if asked.whole and side >= _WHOLE and all_needed(g, asked):
        return Subspace(np.eye(side, dtype=g.dtype), None, 0.0, 0.0)
    w, v = np.linalg.eigh(g)
    sums = np.cumsum(np.maximum(w, 0))
    total = float(sums[-1])
    assert asked.tail is not None
    allowed = max(asked.tail - _noise(g.dtype) * total, 0.0)
    dropped = min(int(np.searchsorted(sums, allowed, side="right")), side - 1)
    if dropped == 0:
        return Subspace(np.eye(side, dtype=g.dtype), None, 0.0, total)
    basis = np.ascontiguousarray(v[:, : dropped - 1 : -1])
    return Subspace(basis, w[: dropped - 1 : -1], float(sums[dropped - 1]), total)


@functools.cache
def _noise(dtype: Any) -> float:
    return GRAM_NOISE * gram_floor(dtype, 2)
