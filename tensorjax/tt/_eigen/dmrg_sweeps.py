"""DMRG sweeps on NumPy arrays: of one eigenvector, and of several in shared bases (block DMRG).

A sweep starts with its centre at the first core and all others right-orthogonal, and ends with the
mirror image of that; so a sweep back is a sweep forth of the mirrored chain, with the interfaces
that the first one left behind. Nothing is compiled, for the shapes change at every step.

A search for one state at a time ends in local minima of the deflated problem: two states that lie
far apart in space are not joined by changes of one or two sites. A block of random states covers
many such minima at once, and equal eigenvalues are found together. It serves as the start of the
searches for single pairs, which then choose their own bases and ranks.

Source of the block: S. Dolgov, B. Khoromskij, I. Oseledets, D. Savostyanov, Comput. Phys. Commun.
185, 1207 (2014), the block tensor train. Departure, ours: it only starts the search, at low ranks.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensorjax import _blas_threads, linalg
from tensorjax._cores import interfaces
from tensorjax._cores.contractions import absorb, join, times_right
from tensorjax._cores.orthogonalization import right_lq
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._cores.products import matvec_core
from tensorjax._cores.unfoldings import Cores, tall, wide
from tensorjax.tt._eigen.local_problems import Array, Local, Rule, Solved, lowest, lowest_block

# Share of a unit vector's length outside a basis from which on it counts as another direction.
_OUTSIDE = 1e-3
# Found states are projected out in the end if that changes the state by at most this.
_HARMLESS = 1e-6


@dataclasses.dataclass
class Chain:
    """State of DMRG sweeps: operator, train with its centre at the first core, interfaces.

    Attributes:
      operator: cores (r, m, n, r').
      cores: of the state, (r, n, r'); all but the first are right-orthogonal.
      rights: ``rights[k]`` is the interface of the operator right of core k.
      found: cores of the states to stay orthogonal to; the operator is deflated by them.
      shift: by how much deflation raises their eigenvalues.
      overlaps: ``overlaps[j][k]`` is the interface of ⟨found j|state⟩ right of core k.
    """

    operator: list[Array]
    cores: list[Array]
    rights: list[Array]
    found: list[list[Array]]
    overlaps: list[list[Array]]
    shift: float


class Pass(NamedTuple):
    """Report of one DMRG sweep: eigenvalue, residual, discarded energy, whether a rank was capped.

    Attributes:
      value: the eigenvalue of the last local problem.
      gradient: root of the sum of the squared residuals that the local problems started from: about
        ‖A x − λ x‖ before the sweep, and exactly its local part.
      discarded: energy cut off by truncations, all bonds together.
      spread: the largest magnitude of an eigenvalue of a local problem, a lower bound of ‖A‖₂.
      capped: whether the cap cut off more than the share allowed.
    """

    value: float
    gradient: float
    discarded: float
    spread: float
    capped: bool


def prepared(
    operator: list[Array], cores: list[Array], found: list[list[Array]], shift: float = 0.0
) -> Chain:
    """Builds the state for DMRG sweeps from a tensor train: normalised, with right interfaces."""
    out = list(cores)
    for k in range(len(out) - 1, 0, -1):
        left, out[k] = right_lq(out[k])
        moved = times_right(out[k - 1], left)
        out[k - 1] = moved / (np.linalg.norm(moved) or 1.0)
    out[0] = out[0] / (np.linalg.norm(out[0]) or 1.0)
    rights = [interfaces.edge(out[0])]
    overlaps = [[interfaces.edge(out[0], operator=False)] for _ in found]
    for k in range(len(out) - 1, 0, -1):
        rights.append(interfaces.right(rights[-1], out[k], operator[k], out[k]))
        for y, line in zip(found, overlaps, strict=True):
            line.append(interfaces.right_overlap(line[-1], y[k], out[k]))
    return Chain(operator, out, rights[::-1], found, [line[::-1] for line in overlaps], shift)


def mirrored(cores: Sequence[Array]) -> list[Array]:
    """Reverses a train or TT-matrix, cores and the bonds of each, for the DMRG sweep back."""
    return [np.ascontiguousarray(np.swapaxes(c, 0, -1)) for c in reversed(cores)]


def shadows(chain: Chain, left: Sequence[Array], window: slice) -> Array | None:
    """Projects found eigenvectors on the sites at which a DMRG sweep is, one row for each."""
    if not chain.found:
        return None
    rows = []
    for cores, line, a in zip(chain.found, chain.overlaps, left, strict=True):
        t = a.conj().T
        for core in cores[window]:
            t = join(t, core)
        rows.append(join(t, line[window.stop - 1].conj()).ravel())
    return np.stack(rows)


# Sweeps ------------------------------------------------------------------------------------------


def sweep(chain: Chain, rule: Rule, rng: np.random.Generator) -> tuple[Chain, Pass]:
    """Runs one DMRG sweep from left to right; returns the mirrored chain for the sweep back."""
    with _blas_threads.one_thread(_blas_threads.slow_down(chain.cores)):
        return _swept(chain, rule, rng)


def _swept(chain: Chain, rule: Rule, rng: np.random.Generator) -> tuple[Chain, Pass]:
    cores, operator = list(chain.cores), chain.operator
    lefts = [interfaces.edge(cores[0])]
    overlaps = [[interfaces.edge(cores[0], operator=False)] for _ in chain.found]
    solved, totals = Solved(0.0, cores[0], 0.0, 0.0, cores[0][None]), np.zeros(2)
    spread, capped = 0.0, False
    for k in range(len(cores) - 1):
        window = slice(k, k + rule.sites)
        theta = cores[k] if rule.sites == 1 else join(cores[k], cores[k + 1])
        rows = shadows(chain, [line[-1] for line in overlaps], window)
        right = chain.rights[window.stop - 1]
        local = Local(lefts[k], operator[window], right, rows, chain.shift)
        solved = lowest(local, theta, rule, rng)
        u, carry, lost, cut = _split(solved.x, rule)
        totals += solved.start**2, lost
        spread, capped = max(spread, solved.spread), capped or cut
        if rule.extra:
            more, missing = _directions(lefts[k], chain, cores, k, u, solved, rule)
            totals[0] += missing**2
            carry = np.concatenate([carry, np.zeros((more.shape[1], carry.shape[1]))])
            u = np.concatenate([u, more], axis=1)
        cores[k] = u.reshape(*cores[k].shape[:2], -1)
        if rule.sites == 1:
            cores[k + 1] = absorb(carry, cores[k + 1])
        else:
            cores[k + 1] = carry.reshape(-1, *cores[k + 1].shape[1:])
        lefts.append(interfaces.left(lefts[k], cores[k], operator[k], cores[k]))
        for y, line in zip(chain.found, overlaps, strict=True):
            line.append(interfaces.left_overlap(line[-1], y[k], cores[k]))
    back = reversed_chain(chain, cores, lefts, overlaps)
    return back, Pass(solved.value, totals[0] ** 0.5, totals[1], spread, capped)


def reversed_chain(
    chain: Chain, cores: list[Array], lefts: list[Array], overlaps: list[list[Array]]
) -> Chain:
    """Mirrors the state of DMRG after a sweep: left interfaces become right ones."""
    return Chain(
        mirrored(chain.operator),
        mirrored(cores),
        lefts[::-1],
        [mirrored(y) for y in chain.found],
        [line[::-1] for line in overlaps],
        chain.shift,
    )


def _split(theta: Array, rule: Rule) -> tuple[Array, Array, float, bool]:
    """Splits a tensor of a DMRG sweep into isometry and remainder; returns discarded energy too."""
    matrix = theta.reshape(theta.shape[0] * theta.shape[1], -1)
    if rule.share == 0:  # all of the bond stays, directions without weight included
        return *linalg.qr(matrix), 0.0, False
    method = linalg.choose("auto", rule.share, matrix.dtype)
    u, _, lost = linalg.left_basis(matrix, share=rule.share, method=method)
    cut = u.shape[1] > rule.cap
    carry = linalg.project(u[:, : rule.cap], matrix)
    size = float(np.linalg.norm(carry))
    lost = 1 - size**2 if cut else max(float(lost), 0.0)
    return u[:, : rule.cap], carry / size, lost, cut


def _directions(
    left: Array, chain: Chain, cores: list[Array], k: int, u: Array, solved: Solved, rule: Rule,
) -> tuple[Array, float]:  # fmt: skip
    """Returns orthonormal columns that enlarge a bond in a DMRG sweep (subspace expansion).

    With two sites they are from the next eigenvectors of the local problem: where the lowest one is
    a local minimum, those lead out of it. With one site they are from what A makes of the state
    outside u on the pair at k, whose norm is returned too.
    """
    rows, used = u.shape
    count = max(min(rule.extra, rows - used, cores[k + 1][0].size - used), 0)
    images = [x.reshape(rows, -1) for x in solved.others[: rule.extra]]
    missing = 0.0
    if rule.sites == 1:
        theta = join(solved.x, cores[k + 1])
        local = Local(left, chain.operator[k : k + 2], chain.rights[k + 1])
        images = [(local(theta) - solved.value * theta).reshape(rows, -1)]
        images[0] -= u @ (u.conj().T @ images[0])
        missing = float(np.linalg.norm(images[0]))
    if count == 0:
        return u[:, :0], missing
    # Columns of zeros: the images may be fewer than the columns asked for.
    wanted = np.concatenate([*images, np.zeros((rows, count))], axis=1)
    wanted = wanted - u @ (u.conj().T @ wanted)
    more = linalg.left_basis(wanted, rank=count, method="randomized").u
    for _ in range(2):  # the first time loses digits where columns are nearly in the span of u
        # Columns of zeros have come back as any, even of that span: a basis with one direction
        # twice would have local problems whose lowest vectors are none of the state.
        more, size, _ = np.linalg.svd(more - u @ (u.conj().T @ more), full_matrices=False)
        more = more[:, size > _OUTSIDE]
    return more, missing


# What a state is worth ---------------------------------------------------------------------------


def settled(chain: Chain) -> tuple[Chain, float]:
    """Normalises the state between DMRG sweeps, without found eigenvectors; returns its eigenvalue.

    Deflation makes them orthogonal about as well as they are converged. The rest is projected out
    in the centre, unless the bonds on its right know too little of the found states.
    """
    centre = chain.cores[0]
    rows = _centre_shadows(chain)
    if rows is not None:
        overlap = rows.conj() @ centre.ravel()
        change = np.linalg.lstsq(rows.conj(), overlap, rcond=None)[0]
        if np.linalg.norm(change) <= min(0.1, max(_HARMLESS, 2 * np.linalg.norm(overlap))):
            centre = centre - change.reshape(centre.shape)
    centre = centre / np.linalg.norm(centre)
    image = Local(interfaces.edge(centre), chain.operator[:1], chain.rights[0])(centre)
    cores = [centre, *chain.cores[1:]]
    return dataclasses.replace(chain, cores=cores), float(np.vdot(centre, image).real)


def _centre_shadows(chain: Chain) -> Array | None:
    ends = [interfaces.edge(chain.cores[0], operator=False)] * len(chain.found)
    return shadows(chain, ends, slice(0, 1))


def _overlaps(chain: Chain) -> Array:
    """Computes a DMRG `Chain`'s inner products with eigenvectors found before, between sweeps."""
    rows = _centre_shadows(chain)
    return np.zeros(1) if rows is None else rows.conj() @ chain.cores[0].ravel()


def overlap(chain: Chain) -> float:
    """Returns the largest overlap of a chain in DMRG sweeps with an eigenvector found before."""
    return float(np.abs(_overlaps(chain)).max())


def share_found(chain: Chain) -> float:
    """Returns the squared norm of a DMRG sweep's chain projected on eigenvectors found before."""
    return float(linalg.energy(_overlaps(chain)[:, None]))


def residual(chain: Chain, value: float) -> float:
    """Computes ‖A x − λ x‖ of the chain that DMRG sweeps, by Gram matrices or, if small, by QR.

    x is right-orthogonal, so that the residual falls into orthogonal parts: at site k the rows of
    the local image that are orthogonal to those of x, times A x on the left of it.
    """
    total, noise = _residual_energy(chain, value, squared=True)
    if total < 100 * noise:  # squares keep half of the digits only
        total, _ = _residual_energy(chain, value, squared=False)
    return max(total, 0.0) ** 0.5


def _residual_energy(chain: Chain, value: float, *, squared: bool) -> tuple[float, float]:
    """Computes ‖A x − λ x‖² after a DMRG sweep, with its roundoff, from the sweep's chain."""
    centre, kind = chain.cores[0], chain.cores[0].dtype
    local = Local(interfaces.edge(centre), chain.operator[:1], chain.rights[0])
    total = float(np.linalg.norm(local(centre) - value * centre)) ** 2
    noise, seen = 0.0, np.ones((1, 1), kind)
    for k, (a, x, right) in enumerate(zip(chain.operator, chain.cores, chain.rights, strict=True)):
        image = matvec_core(a, x)
        if k:
            rows, kept = wide(times_right(image, right.reshape(len(right), -1).T)), wide(x)
            rows -= (rows @ kept.conj().T) @ kept
            if squared:
                total += float(np.vdot(rows, seen @ rows).real)
                weights = np.linalg.norm(rows, axis=1) ** 2
                noise += float(weights @ np.abs(np.diagonal(seen))) * np.finfo(kind).eps
            else:
                total += float(np.linalg.norm(seen @ rows)) ** 2
        moved = absorb(seen, image)
        if squared:
            seen = bond_overlap(image, moved)
        else:
            seen = tall(moved)
            seen = np.linalg.qr(seen, mode="r") if len(seen) > seen.shape[1] else seen
    return total, noise


class Block(NamedTuple):
    """Block tensor train of block-DMRG sweeps: several states that share all cores but the first.

    Attributes:
      chain: the operator, the shared right-orthogonal cores and all interfaces; its first core is
        one of the states'.
      centres: (b, 1, n, r) or (b, 1, n, r) of the mirrored chain: the first core of every state.
      values: (b,) their Ritz values, ascending.
    """

    chain: Chain
    centres: Array
    values: Array

    def state(self, j: int) -> Cores:
        """Returns the cores of state j of a block tensor train, which block-DMRG sweeps improve."""
        return [self.centres[j], *self.chain.cores[1:]]


def random_block(chain: Chain, count: int, rng: np.random.Generator) -> Block:
    """Draws random states for block-DMRG sweeps, which share the bases of a given train.

    There may be more of them than the centre has room for: a sweep makes them orthonormal.
    """
    centre = chain.cores[0]
    rows = rng.standard_normal((count, centre.size)).astype(centre.dtype)
    return Block(chain, rows.reshape(count, *centre.shape), np.full(count, np.inf))


def joined(trains: Sequence[Cores]) -> Cores:
    """Adds trains exactly by block-diagonal cores, so that block DMRG starts in all their bases."""
    first, *middle, last = zip(*trains, strict=True)
    out = [np.concatenate(first, axis=2)]
    for cores in middle:
        ends = np.cumsum([(0, 0), *((len(c), c.shape[2]) for c in cores)], axis=0)
        core = np.zeros((ends[-1][0], cores[0].shape[1], ends[-1][1]), np.result_type(*cores))
        for c, (a, b), (i, j) in zip(cores, ends, ends[1:], strict=False):
            core[a:i, :, b:j] = c
        out.append(core)
    return [*out, np.concatenate(last, axis=0)]


def block_sweep(block: Block, rule: Rule) -> Block:
    """Runs one block-DMRG sweep from left to right; returns the mirrored block for the way back.

    As `sweep`, but every local problem is solved for as many vectors as there are states, and
    bases are cut by the sum of the states' energies.
    """
    with _blas_threads.one_thread(_blas_threads.slow_down(block.chain.cores)):
        return _block_swept(block, rule)


def _block_swept(block: Block, rule: Rule) -> Block:
    chain, values = block.chain, block.values
    cores, thetas = list(chain.cores), block.centres
    lefts = [interfaces.edge(cores[0])]
    overlaps = [[interfaces.edge(cores[0], operator=False)] for _ in chain.found]
    for k in range(len(cores) - 1):
        window = slice(k, k + rule.sites)
        if rule.sites == 2:
            thetas = np.stack([join(x, cores[k + 1]) for x in thetas])
        seen = shadows(chain, [line[-1] for line in overlaps], window)
        right = chain.rights[window.stop - 1]
        local = Local(lefts[k], chain.operator[window], right, seen, chain.shift)
        values, thetas = lowest_block(local, thetas, rule.steps)
        u, rest = _block_split(thetas, rule)
        cores[k] = u.reshape(*thetas.shape[1:3], -1)
        if rule.sites == 1:
            thetas = join(rest, cores[k + 1])
        else:
            thetas = rest.reshape(len(rest), -1, *cores[k + 1].shape[1:])
        lefts.append(interfaces.left(lefts[k], cores[k], chain.operator[k], cores[k]))
        for y, line in zip(chain.found, overlaps, strict=True):
            line.append(interfaces.left_overlap(line[-1], y[k], cores[k]))
    cores[-1] = thetas[0]
    back = reversed_chain(chain, cores, lefts, overlaps)
    return Block(back, np.ascontiguousarray(thetas.swapaxes(1, 3)), values)


def _block_split(thetas: Array, rule: Rule) -> tuple[Array, Array]:
    """Splits states in a block-DMRG sweep into one shared isometry and remainders."""
    count, rows = len(thetas), thetas.shape[1] * thetas.shape[2]
    states = thetas.reshape(count, rows, -1)
    # States as further columns: the basis that is best for all of them together (Dolgov et al.).
    matrix = states.transpose(1, 0, 2).reshape(rows, -1)
    u = linalg.left_basis(matrix, share=rule.share, method="gram").u[:, : rule.cap]
    return u, u.conj().T @ states
