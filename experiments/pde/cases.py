"""Test equations: P1 to P7 of the prototype, a family in up to 20 dimensions, and others.

Where the prototype's data are not all known (P6's mixture) they are ours, and so are all other
problems. Every problem but `cyclic` has an exact density.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from tensorjax import pde


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Test case: an equation, and how it is integrated.

    Attributes:
      name: in the tables.
      problem: with its box.
      t1: the end; all start at zero.
      steps: of the classical Runge–Kutta method, all of one length.
      tol: relative error at which every step is truncated.
      kappa: rates of feedback at which `pde.MultiLevel` is tried besides 0.
      reference: relative tolerance of a run in fixed coordinates that stands for the exact
        solution, where there is none; else None.
    """

    name: str
    problem: pde.Problem
    t1: float
    steps: int
    tol: float
    kappa: tuple[float, ...] = ()
    reference: float | None = None

    def points(self, t: float, count: int) -> np.ndarray:
        """Draws points (count, d) from the density, exactly or by simulation."""
        rng = np.random.default_rng(0)
        if self.reference is not None:
            assert isinstance(self.problem, pde.FokkerPlanck)
            return self.problem.simulate(rng, t, count, steps=200)
        return self.problem.sample(rng, t, count)


def turn() -> pde.Liouville:
    """Returns problem P1: an elongated Gaussian that rotates."""
    start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.16]), amplitude=1.0)
    return pde.Liouville(_ROTATION, start, pde.Box.fourier(2, 112, 7.0))


def chain(d: int) -> pde.OrnsteinUhlenbeck:
    """Returns problem P2: an Ornstein–Uhlenbeck process that couples neighbours."""
    matrix, diffusion = _chain(d)
    start = pde.Gaussian(np.zeros(d), np.diag(np.resize([1.0, 0.25], d)))
    return pde.OrnsteinUhlenbeck(matrix, diffusion, start, pde.Box.fourier(d, 64, 7.0))


def saddle() -> pde.Liouville:
    """Returns problem P3: a Gaussian stretched along one diagonal and squeezed along the other."""
    matrix = np.array([[0.0, 1.0], [1.0, 0.0]])
    start = pde.Gaussian(np.zeros(2), np.diag([0.5, 0.25]))
    return pde.Liouville(matrix, start, pde.Box.fourier(2, 96, 6.0))


def sines() -> pde.FokkerPlanck:
    """Returns problem P4: the Liouville equation of ẋ₁ = sin x₂, ẋ₂ = −sin x₁."""
    drift = [pde.Sin([0.0, 1.0]), pde.Sin([1.0, 0.0], amplitude=-1.0)]
    start = pde.Gaussian(np.zeros(2), np.diag([0.5, 0.08]))
    return pde.FokkerPlanck(drift, None, start, pde.Box.fourier(2, 112, 5.0))


def three_sines() -> pde.FokkerPlanck:
    """Returns problem P5: the Liouville equation of ẋ₁ = sin x₂, ẋ₂ = sin x₃, ẋ₃ = sin x₁."""
    drift = [pde.Sin(np.eye(3)[k]) for k in (1, 2, 0)]
    start = pde.Gaussian(np.array([0.3, -0.2, 0.2]), np.diag([0.3, 0.08, 0.15]))
    return pde.FokkerPlanck(drift, None, start, pde.Box.fourier(3, 80, 5.0))


def mixture(spreads: tuple[tuple[float, float, float], ...]) -> pde.OrnsteinUhlenbeck:
    """Returns problem P6: the process of P2, started from a mixture of three Gaussians.

    One linear map fits all of them only if they are alike.

    Args:
      spreads: variances of each.
    """
    means = np.array([[1.0, 0.0, 0.0], [-0.6, 0.5, 0.0], [-0.2, -0.6, 0.5]])
    parts = [pde.Gaussian(m, np.diag(s)) for m, s in zip(means, spreads, strict=True)]
    start = pde.Mixture([0.4, 0.3, 0.3], parts)
    return pde.OrnsteinUhlenbeck(*_chain(3), start, pde.Box.fourier(3, 64, 7.0))


def misaligned() -> pde.Liouville:
    """Returns problem P7: a Gaussian turned by 30° against the axes, rotating back."""
    c, s = np.cos(np.pi / 6), np.sin(np.pi / 6)
    axes = np.array([[c, -s], [s, c]])
    start = pde.Gaussian(np.zeros(2), axes @ np.diag([1.0, 0.16]) @ axes.T)
    return pde.Liouville(0.5 * _ROTATION, start, pde.Box.fourier(2, 112, 7.0))


def round_gaussian() -> pde.Liouville:
    """Returns the problem of an isotropic Gaussian that rotates, so that nothing changes."""
    start = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2))
    return pde.Liouville(_ROTATION, start, pde.Box.fourier(2, 64, 6.0))


def banana(noise: float = 0.0) -> pde.FokkerPlanck:
    """Returns the problem of an elongated Gaussian that bends as it rotates.

    ẋ₁ = ½x₂ + 1.5 cos(0.8 x₂), ẋ₂ = −½x₁.

    Args:
      noise: D, a multiple of one.
    """
    drift = [pde.Sin([0.0, 0.8], phase=np.pi / 2, amplitude=1.5), None]
    start = pde.Gaussian(np.zeros(2), np.diag([0.1, 0.5]))
    box = pde.Box.fourier(2, 64, 5.0)
    return pde.FokkerPlanck(drift, noise, start, box, matrix=0.5 * _ROTATION)


def cyclic() -> pde.FokkerPlanck:
    """Returns a Fokker–Planck equation in four dimensions, cyclically coupled by sines.

    dx_k = (sin x_{k+1} − x_k/5) dt + noise.
    """
    drift = [pde.Sin(np.eye(4)[(k + 1) % 4]) for k in range(4)]
    start = pde.Gaussian(np.zeros(4), np.diag([0.4, 0.15, 0.3, 0.1]))
    box = pde.Box.fourier(4, 48, 5.0)
    return pde.FokkerPlanck(drift, 0.05, start, box, matrix=-0.2 * np.eye(4))


def henon_heiles(strength: float = 0.3) -> pde.FokkerPlanck:
    """Returns the Liouville equation of the Hénon–Heiles Hamiltonian, in four dimensions.

    x = (q₁, q₂, p₁, p₂).

    H = ½(p² + q²) + λ (q₁² q₂ − q₂³/3).

    Args:
      strength: λ.

    Source: M. Hénon, C. Heiles, Astron. J. 69 (1964) 73, where λ = 1.
    """
    e = np.eye(4)
    matrix = np.block([[np.zeros((2, 2)), np.eye(2)], [-np.eye(2), np.zeros((2, 2))]])
    both = pde.Product([pde.Power(e[0]), pde.Power(e[1])], amplitude=-2 * strength)
    squares = [
        pde.Power(e[0], exponent=2, amplitude=-strength),
        pde.Power(e[1], exponent=2, amplitude=strength),
    ]
    start = pde.Gaussian(np.array([0.3, 0.0, 0.0, 0.3]), np.diag([0.15, 0.05, 0.05, 0.15]))
    box = pde.Box.fourier(4, 48, 3.0)
    return pde.FokkerPlanck([None, None, both, squares], None, start, box, matrix=matrix)


_ROTATION = np.array([[0.0, 1.0], [-1.0, 0.0]])


def _chain(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the drift matrix and the diffusion of problem P2."""
    up, down = np.eye(d, k=1), np.eye(d, k=-1)
    return -0.5 * np.eye(d) + 0.8 * (up - down), 0.1 * (np.eye(d) + 0.5 * (up + down))


_ALIKE = ((1.0, 0.25, 1.0),) * 3
_UNLIKE = ((0.5, 0.15, 0.3), (0.2, 0.4, 0.2), (0.3, 0.2, 0.4))

# Name, problem, end, steps, tolerances (the first one in a quick run), rates of feedback.
_TABLE: tuple[
    tuple[str, Callable[[], pde.Problem], float, int, tuple[float, ...], tuple[float, ...]], ...
] = (
    ("P1", turn, np.pi / 4, 80, (1e-8, 1e-6), ()),
    ("P3", saddle, 1.0, 100, (1e-8,), ()),
    ("P4", sines, 1.0, 100, (1e-4, 1e-3, 1e-6, 1e-8), ()),
    ("P5", three_sines, 0.75, 60, (1e-4,), ()),
    ("P6", lambda: mixture(_ALIKE), 1.0, 80, (1e-4, 1e-6), ()),
    ("P6, unlike", lambda: mixture(_UNLIKE), 1.0, 80, (1e-4, 1e-6), ()),
    ("P7", misaligned, 1.0, 100, (1e-6,), (20.0,)),
    ("round", round_gaussian, 1.0, 40, (1e-8,), ()),
)
NAMES = tuple(row[0] for row in _TABLE)


def plane(names: tuple[str, ...], *, quick: bool) -> list[Case]:
    """Returns the cases P1, P3 to P7 and the isotropic Gaussian, at one or all tolerances."""
    return [
        Case(name, build(), t1, steps, tol, kappa)
        for name, build, t1, steps, tols, kappa in _TABLE
        if name in names
        for tol in sorted(tols[:1] if quick else tols, reverse=True)
    ]


def family(dims: tuple[int, ...], tol: float) -> list[Case]:
    """Returns the cases of problem P2 in given dimensions."""
    return [Case(f"P2, d = {d}", chain(d), 1.0, 80, tol) for d in dims]


BENT = {"banana": 0.0, "banana, noise": 0.02}


def bent(names: tuple[str, ...], tols: tuple[float, ...], steps: int) -> list[Case]:
    """Returns cases of densities that no linear map can straighten."""
    return [
        Case(name, banana(BENT[name]), 1.0, steps, tol, reference=tol / 10 if BENT[name] else None)
        for name in names
        for tol in tols
    ]


def four(names: tuple[str, ...], tols: tuple[float, ...], steps: int) -> list[Case]:
    """Returns the cases in four dimensions."""
    build = {"cyclic": cyclic, "Hénon–Heiles": henon_heiles}
    return [
        Case(name, build[name](), 1.0, steps, tol, reference=tol / 10 if name == "cyclic" else None)
        for name in names
        for tol in tols
    ]
