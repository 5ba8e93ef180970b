"""An applied mathematician's script: PDEs, sketches, MERAs and conversions, checked strictly."""

from typing import assert_type

import jax
import numpy as np

from tensorjax import convert, interop, mera, pde, sketch, tt


class Heat(pde.Problem):
    """Heat equation in moving coordinates."""

    def right_side(self, map: pde.AffineMap, t: float) -> pde.RightSide:
        spread = map.matrix @ map.matrix.T
        return pde.RightSide(self.box, pde.Coefficients(diffusion=spread))


def time(state: pde.State) -> float:
    return state.t


def equations() -> None:
    box = pde.Box.fourier(2, 32, 6.0)
    start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.5]))
    problem = pde.OrnsteinUhlenbeck(-np.eye(2), np.eye(2), start, box)
    solution = pde.integrate(problem, t1=0.1, dt=0.05, tol=1e-4)
    assert_type(solution.result, pde.Result)
    last = solution.ys[-1]
    assert_type(last, pde.State)
    times = pde.SaveAt(t0=True, fn=time)
    assert_type(pde.integrate(problem, t1=0.1, saveat=times).ys, list[float])
    ends = pde.integrate(problem, t1=0.1, saveat=pde.SaveAt(t0=True, t1=True))
    assert_type(ends.ys, list[pde.State])
    print(solution.message, solution.stats["rank"], last.t, pde.mass(last.v, last.map, box))
    print(pde.moments(last.v, last.map, box))
    print(pde.evaluate(last.v, last.map, box, np.zeros((1, 2))))
    heat = pde.integrate(Heat(start, box), t1=0.1, dt=0.05, tol=1e-3, coordinates="fixed")
    assert_type(heat, pde.Solution)
    map = pde.affine([[2.0, 0.0], [0.0, 1.0]])
    print(map.forward(np.ones((1, 2))), heat.result.value)


def sketches() -> None:
    key = jax.random.key(0)
    p = sketch.ttrp(key, (4, 4, 4), (2, 2, 2))
    x = tt.random(key, (4, 4, 4), rank=2)
    assert_type(sketch.apply(p, x), tt.TT)
    assert_type(sketch.apply(p, np.ones((5, 64))), jax.Array)
    print(sketch.variance(p, x), sketch.variance_bound(p), p.out_shape)
    estimator = sketch.TTRandomProjection(8, random_state=0)
    print(estimator.fit(np.ones((3, 64))).transform(np.ones((3, 64))))


def networks() -> None:
    key = jax.random.key(1)
    m = mera.random(key, (2,) * 8, rank=2)
    assert_type(m * 2, mera.MERA)
    assert_type(mera.norm(m), jax.Array)
    z = np.diag([1.0, -1.0])
    print(mera.expectation(m, np.kron(z, z), (0, 1)), m.boundary)
    train = mera.to_tt(m)
    assert_type(train, tt.TT)
    assert_type(tt.round(train + train, tol=1e-4), tt.TT)
    found, info = convert.tt_to_mera(train, tol=1e-3)
    assert_type(found, mera.MERA)
    better, report = mera.refine(found, train, steps=2)
    print(info, mera.to_dense(better).shape, report, interop.to_numpy(train))


if __name__ == "__main__":
    equations()
    sketches()
    networks()
