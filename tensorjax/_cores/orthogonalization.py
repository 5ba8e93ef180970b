"""QR sweeps over the cores of a train."""

from tensorjax._cores.scaling import in_range
from tensorjax._cores.unfoldings import Cores, short, times_right, wide
from tensorjax.linalg._arrays import adjoint


def triangles(cores: Cores) -> Cores:
    """Computes right factors of a train's cores, up to a scale, by QR sweep without forming Q.

    The right factor of the bond between cores k and k+1 is a matrix (r_k, f) with F Fᴴ the Gram
    matrix of everything right of the bond.
    """
    factors: Cores = []
    f = None
    for core in reversed(cores[1:]):
        f = wide(core if f is None else times_right(core, f))
        f = in_range(adjoint(short(adjoint(f))))
        factors.append(f)
    return factors[::-1]
