"""Block DMRG: several of the lowest states at once, in shared bases (block tensor train).

A search for one state at a time ends in local minima of the deflated problem: two states that lie
far apart in space are not joined by changes of one or two sites. A block of random states covers
many such minima at once, and equal eigenvalues are found together. It serves as the start of the
searches for single pairs, which then choose their own bases and ranks.

Source: S. Dolgov, B. Khoromskij, I. Oseledets, D. Savostyanov, Comput. Phys. Commun. 185, 1207
(2014), the block tensor train. Departure, ours: the block only starts the search, at low ranks.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensorjax import _blas_threads, linalg
from tensorjax._cores import interfaces as interfaces
from tensorjax._cores.contractions import join
from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._eigen import dmrg_sweeps as dmrg
from tensorjax.tt._eigen.local_problems import Array, Local, Rule, lowest_block


class Block(NamedTuple):
    """Block tensor train: several states that share all cores but the first.

    Attributes:
      chain: the operator, the shared right-orthogonal cores and all interfaces; its first core is
        one of the states'.
      centres: (b, 1, n, r) or (b, 1, n, r) of the mirrored chain: the first core of every state.
      values: (b,) their Ritz values, ascending.
    """

    chain: dmrg.Chain
    centres: Array
    values: Array

    def state(self, j: int) -> Cores:
        """Returns the cores of state j of a block tensor train."""
        return [self.centres[j], *self.chain.cores[1:]]


def random_block(chain: dmrg.Chain, count: int, rng: np.random.Generator) -> Block:
    """Draws a block tensor train of random states that share the bases of a given train.

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


def sweep(block: Block, rule: Rule) -> Block:
    """Runs one block-DMRG sweep from left to right; returns the mirrored block for the way back.

    As `dmrg.sweep`, but every local problem is solved for as many vectors as there are states, and
    bases are cut by the sum of the states' energies.
    """
    with _blas_threads.one_thread(_blas_threads.slow_down(block.chain.cores)):
        return _swept(block, rule)


def _swept(block: Block, rule: Rule) -> Block:
    chain, values = block.chain, block.values
    cores, thetas = list(chain.cores), block.centres
    lefts = [interfaces.edge(cores[0])]
    overlaps = [[interfaces.edge(cores[0], operator=False)] for _ in chain.found]
    for k in range(len(cores) - 1):
        window = slice(k, k + rule.sites)
        if rule.sites == 2:
            thetas = np.stack([join(x, cores[k + 1]) for x in thetas])
        shadows = dmrg.shadows(chain, [line[-1] for line in overlaps], window)
        right = chain.rights[window.stop - 1]
        local = Local(lefts[k], chain.operator[window], right, shadows, chain.shift)
        values, thetas = lowest_block(local, thetas, rule.steps)
        u, rest = _split(thetas, rule)
        cores[k] = u.reshape(*thetas.shape[1:3], -1)
        if rule.sites == 1:
            thetas = join(rest, cores[k + 1])
        else:
            thetas = rest.reshape(len(rest), -1, *cores[k + 1].shape[1:])
        lefts.append(interfaces.left(lefts[k], cores[k], chain.operator[k], cores[k]))
        for y, line in zip(chain.found, overlaps, strict=True):
            line.append(interfaces.left_overlap(line[-1], y[k], cores[k]))
    cores[-1] = thetas[0]
    back = dmrg.reversed_chain(chain, cores, lefts, overlaps)
    return Block(back, np.ascontiguousarray(thetas.swapaxes(1, 3)), values)


def _split(thetas: Array, rule: Rule) -> tuple[Array, Array]:
    """Splits the states of a block tensor train into one shared isometry and remainders."""
    count, rows = len(thetas), thetas.shape[1] * thetas.shape[2]
    states = thetas.reshape(count, rows, -1)
    # States as further columns: the basis that is best for all of them together (Dolgov et al.).
    matrix = states.transpose(1, 0, 2).reshape(rows, -1)
    u = linalg.left_basis(matrix, share=rule.share, method="gram").u[:, : rule.cap]
    return u, u.conj().T @ states
