"""Problems of `bench/solvers`, with each library's way to solve them by documented options."""

import contextlib
import io
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench._solving import (
    Answer,
    Problem,
    Way,
    compared,
    found,
    from_quimb,
    quimb_arrays,
    torch_train,
)
from tensorjax import tt

# Products and sums ------------------------------------------------------------------------------


def decaying(key: jax.Array, shape: tuple[int, ...], rank: int, factor: float) -> tt.TT:
    """Draws a train whose singular values fall by about ``factor`` from one to the next."""
    t = tt.random(key, shape, rank, float)
    weights = factor ** jnp.arange(rank, dtype=float)
    cores = [c * weights[None, None, : c.shape[2]] for c in t.cores]
    t = tt.TT(cores)
    return t / tt.norm(t)


def products(order: int, mode: int, rank: int) -> list[Problem]:
    """Returns problems: entry-wise product and matrix-vector product, rounded to a rank."""
    shape = (mode,) * order
    keys = jax.random.split(jax.random.key(0), 4)
    x, y = (decaying(k, shape, rank, 0.5) for k in keys[:2])
    a = tt.random_matrix(keys[2], shape, shape, 4, float)
    # The exact product in a form small enough to compare with: ranks that matter only.
    small = [tt.round(t, tol=1e-7) for t in (x, y)]
    exact = tt.round(tt.hadamard(*small), tol=1e-8)
    image = tt.round(tt.matvec(a, small[0]), tol=1e-8)
    return [
        Problem(f"Hadamard, d = {order}, n = {mode}, rank {rank}", _hadamards(x, y, exact), 3.0),
        Problem(
            f"matrix · vector, d = {order}, n = {mode}, rank {rank}", _matvecs(a, x, image), 3.0
        ),
    ]


def _hadamards(x: tt.TT, y: tt.TT, exact: tt.TT) -> list[Way]:
    rank = max(x.ranks)
    ours = compared(exact, lambda t: t.cores)
    ways = [
        Way("tensorjax", "", lambda: jax.block_until_ready(tt.hadamard(x, y, rank=rank)), ours),
        Way("tensorjax", "tol 1e-6", lambda: tt.hadamard(x, y, tol=1e-6), ours),
    ]
    if (torchtt := found("torchtt")) is not None:
        a, b = (torch_train(t.cores) for t in (x, y))
        theirs = compared(exact, lambda t: t.cores)
        ways += [
            Way(
                "torchTT",
                "fast_hadammard",
                lambda: torchtt.fast_hadammard(a, b, 1e-6, rank),
                theirs,
            ),
            Way(
                "torchTT",
                "dmrg_hadamard",
                lambda: torchtt.dmrg_hadamard(a, b, eps=1e-6, rmax=rank, use_cpp=False),
                theirs,
            ),
        ]
    return ways


def _matvecs(a: tt.TTMatrix, x: tt.TT, exact: tt.TT) -> list[Way]:
    rank = max(x.ranks)
    ours = compared(exact, lambda t: t.cores)
    ways = [
        Way("tensorjax", "", lambda: jax.block_until_ready(tt.matvec(a, x, rank=rank)), ours),
        Way(
            "tensorjax",
            "oversample=0",
            lambda: jax.block_until_ready(tt.matvec(a, x, rank=rank, oversample=0)),
            ours,
        ),
        Way("tensorjax", "tol 1e-6", lambda: tt.matvec(a, x, tol=1e-6), ours),
    ]
    if (torchtt := found("torchtt")) is not None:
        matrix, vector = (torch_train(t.cores) for t in (a, x))
        theirs = compared(exact, lambda t: t.cores)
        ways += [
            Way("torchTT", "fast_mv", lambda: torchtt.fast_mv(matrix, vector, 1e-6, rank), theirs),
            Way("torchTT", "then round", lambda: (matrix @ vector).round(1e-6, rank), theirs),
            Way(
                "torchTT",
                "amen_mv",
                lambda: torchtt.amen_mv(matrix, vector, eps=1e-6, rmax=rank, use_cpp=False),
                theirs,
            ),
        ]
    if found("quimb") is not None:
        qtn = found("quimb.tensor")
        operator = qtn.MatrixProductOperator(quimb_arrays(a.cores), shape="lrud")
        state = qtn.MatrixProductState(quimb_arrays(x.cores), shape="lrp")
        back = compared(exact, from_quimb)
        product = operator.apply(state, contract=False)
        for method in ("zipup", "src", "src-oversample", "fit-zipup"):
            ways.append(
                Way(
                    "quimb",
                    method,
                    lambda m=method: qtn.tensor_network_1d_compress(
                        product, rank, 0.0, m, site_tags=state.site_tags
                    ),
                    back,
                )
            )
    return ways


# Completion -------------------------------------------------------------------------------------


def completion(size: int, share: float) -> list[Problem]:
    """Returns a problem: a photograph is to be completed from a share of its entries."""
    from sklearn.datasets import load_sample_image

    image = load_sample_image("china.jpg")[: 4 * size : 4, : 4 * size : 4].astype(float) / 255
    image = image.transpose(0, 2, 1)  # the colour between rows and columns
    rng = np.random.default_rng(0)
    mask = rng.random(image.shape) < share
    seen = np.argwhere(mask)
    values = image[tuple(seen.T)]
    hidden = ~mask

    def score(dense: np.ndarray) -> Answer:
        error = np.linalg.norm((dense - image)[hidden]) / np.linalg.norm(image[hidden])
        return {"error": float(error)}

    def ours(result: Any) -> Answer:
        train, info = result
        return {**score(np.asarray(tt.to_dense(train))), "rank": max(train.ranks),
                "status": info.status}  # fmt: skip

    def fit(rank: int, **options: Any) -> Any:
        return tt.complete(seen, values, image.shape, rank, ridge=1e-2, **options)

    ways = [
        Way("tensorjax", "ALS, ranks adapted", lambda: fit(30, adapt=True), ours),
        Way("tensorjax", "ALS, rank 6", lambda: fit(6), ours),
        Way("tensorjax", "Riemannian, rank 4", lambda: fit(4, method="riemannian"), ours),
    ]
    if (tensorly := found("tensorly")) is not None:
        parafac, tucker = tensorly.decomposition.parafac, tensorly.decomposition.tucker

        whole = mask.astype(float)
        start = image * whole
        for rank in (5, 10, 20):
            ways.append(
                Way(
                    "tensorly",
                    f"parafac, rank {rank}",
                    lambda r=rank: parafac(
                        start, r, mask=whole, n_iter_max=100, init="random", random_state=0
                    ),
                    lambda out: score(tensorly.cp_to_tensor(out)),
                )
            )
            ways.append(
                Way(
                    "tensorly",
                    f"tucker, rank {rank}",
                    lambda r=rank: tucker(start, (r, 3, r), mask=whole, n_iter_max=100),
                    lambda out: score(tensorly.tucker_to_tensor(out)),
                )
            )
    return [Problem(f"photograph {image.shape}, {share:.0%} of the pixels", ways)]


# Cross approximation ----------------------------------------------------------------------------


def _functions(xp: Any, order: int) -> dict[str, tuple[float, float, Callable[[Any], Any]]]:
    """Returns test functions of coordinates (batch, d) by name, with their boxes."""

    def ackley(x: Any) -> Any:
        root = xp.exp(-0.2 * xp.sqrt((x * x).sum(1) / order))
        return 20 + math.e - 20 * root - xp.exp(xp.cos(2 * math.pi * x).sum(1) / order)

    return {
        "1 / (1 + Σx)": (0.0, 1.0, lambda x: 1 / (1 + x.sum(1))),
        "Ackley": (-32.768, 32.768, ackley),
        "cos(Σx + 2 Σ xₖxₖ₊₁)": (
            0.0, 1.0, lambda x: xp.cos(x.sum(1) + 2 * (x[:, 1:] * x[:, :-1]).sum(1)),
        ),
        "1 / (0.01 + Σ(x − ½)²)": (0.0, 1.0, lambda x: 1 / (0.01 + ((x - 0.5) ** 2).sum(1))),
    }  # fmt: skip


def cross(order: int, size: int) -> list[Problem]:
    """Returns problems: cross approximation of functions on a grid, to a relative error of 1e-6."""
    problems = []
    where = np.random.default_rng(99).integers(0, size, (10_000, order))
    for name, (low, high, f) in _functions(np, order).items():
        grid = np.linspace(low, high, size)
        exact = f(grid[where])

        def answer(cores: Any, count: int, exact: np.ndarray = exact) -> Answer:
            entries = tt.evaluate(tt.TT([np.asarray(c, float) for c in cores]), where)
            error = np.linalg.norm(np.asarray(entries) - exact) / np.linalg.norm(exact)
            return {"error": float(error), "evaluations": count}

        ways = [_our_cross(f, grid, order, answer), *_their_crosses(name, grid, order, answer)]
        problems.append(Problem(f"{name}, d = {order}, n = {size}", ways, 2.0))
    return problems


def _our_cross(f: Any, grid: np.ndarray, order: int, answer: Any) -> Way:
    shape, key = (len(grid),) * order, jax.random.key(0)
    return Way(
        "tensorjax",
        "tt.cross",
        lambda: tt.cross(f, shape, grid=[grid] * order, tol=1e-6, key=key),
        lambda out: answer(out[0].cores, out[1].evaluations),
    )


class _Counted:
    """Function that counts the points at which it is evaluated."""

    def __init__(self, f: Callable[[Any], Any]):
        self.f, self.count = f, 0

    def __call__(self, x: Any) -> Any:
        self.count += len(x)
        return self.f(x)


def _their_crosses(name: str, grid: np.ndarray, order: int, answer: Any) -> list[Way]:
    """Returns other libraries' cross approximations, at options that reach 1e-6 fastest."""
    ways: list[Way] = []
    torch, tntorch, teneva = found("torch"), found("tntorch"), found("teneva")
    if torch is not None and tntorch is not None:
        f = _Counted(_functions(torch, order)[name][2])
        points = [torch.tensor(grid)] * order
        for eps, kick in itertools.product((1e-6, 5e-7), (2, 3, 4, 6, 8)):

            def theirs(eps: float = eps, kick: int = kick, f: Any = f) -> Any:
                f.count = 0
                torch.manual_seed(0)
                with contextlib.redirect_stdout(io.StringIO()):  # it advertises at every call
                    t = tntorch.cross(
                        function=f, domain=points, function_arg="matrix", eps=eps, kickrank=kick,
                        max_iter=40, verbose=False, suppress_warnings=True,
                    )  # fmt: skip
                return [c.numpy() for c in t.cores], f.count

            name_of = f"eps {eps:g}, kickrank {kick}"
            ways.append(Way("tntorch", name_of, theirs, lambda out: answer(*out)))
    if torch is not None and (interpolate := found("torchtt.interpolate")) is not None:
        torch_f, axis = _Counted(_functions(torch, order)[name][2]), torch.tensor(grid)
        for eps, kick in itertools.product((1e-5, 1e-6), (2, 4)):

            def torchtt(eps: float = eps, kick: int = kick) -> Any:
                torch_f.count = 0
                torch.manual_seed(0)
                t = interpolate.dmrg_cross(
                    lambda i: torch_f(axis[i]), [len(grid)] * order, eps=eps, nswp=20, kick=kick
                )
                return [c.numpy() for c in t.cores], torch_f.count

            name_of = f"dmrg_cross, eps {eps:g}, kick {kick}"
            ways.append(Way("torchTT", name_of, torchtt, lambda out: answer(*out)))
    if teneva is not None:
        g = _Counted(lambda i: _functions(np, order)[name][2](grid[i.astype(int)]))
        for eps, more in ((1e-5, 1), (1e-5, 2), (1e-6, 2), (1e-6, 3)):

            def again(eps: float = eps, more: int = more, g: Any = g) -> Any:
                g.count = 0
                start = teneva.rand([len(grid)] * order, 1, seed=0)
                y = teneva.cross(g, start, e=eps, nswp=30, dr_min=1, dr_max=more, cache={})
                return y, g.count

            ways.append(Way("teneva", f"e {eps}, dr {more}", again, lambda out: answer(*out)))
    return ways


# Linear systems ---------------------------------------------------------------------------------


def _laplace_like(one: np.ndarray, order: int) -> tt.TTMatrix:
    """Builds the TT-matrix, of rank 2, of a sum of one matrix acting on every mode."""
    n = len(one)
    core = np.zeros((2, n, n, 2))
    core[0, :, :, 0] = core[1, :, :, 1] = np.eye(n)
    core[1, :, :, 0] = one
    return tt.TTMatrix([core[1:], *[core] * (order - 2), core[..., :1]])


def systems(orders: tuple[int, ...], size: int) -> list[Problem]:
    """Returns problems: Poisson and convection equations on the unit cube, to a residual of 1e-8.

    −Δu = 1 and −Δu + v·∇u = 1 by finite differences.
    """
    h = 1 / (size + 1)
    laplacian = (2 * np.eye(size) - np.eye(size, k=1) - np.eye(size, k=-1)) / h**2
    gradient = (np.eye(size, k=1) - np.eye(size, k=-1)) / (2 * h)
    problems = []
    for order in orders:
        for name, one in (("Poisson", laplacian), ("convection", laplacian + 10 * gradient)):
            a, b = _laplace_like(one, order), tt.ones((size,) * order, float)
            problems.append(Problem(f"{name}, d = {order}, n = {size}", _solvers(a, b), 2.0))
    return problems


def _solvers(a: tt.TTMatrix, b: tt.TT) -> list[Way]:
    def answer(cores: Any) -> Answer:
        x = tt.TT([np.asarray(c) for c in cores])
        residual = tt.distance(tt.matvec(a, x), b) / tt.norm(b)
        return {"error": float(residual), "rank": max(x.ranks)}

    ways = [
        Way("tensorjax", "AMEn", lambda: tt.solve(a, b, tol=1e-8), lambda out: answer(out[0].cores))
    ]
    if (torchtt := found("torchtt")) is not None:
        matrix, vector = torch_train(a.cores), torch_train(b.cores)
        for kick, preconditioner in ((2, "c"), (4, "c"), (4, None)):
            options = {"kickrank": kick, "preconditioner": preconditioner, "nswp": 60}
            ways.append(
                Way(
                    "torchTT",
                    f"kickrank {kick}, preconditioner {preconditioner}",
                    lambda o=options: torchtt.solvers.amen_solve(
                        matrix, vector, eps=1e-8, verbose=False, **o
                    ),
                    lambda x: answer([c.numpy() for c in x.cores]),
                )
            )
    return ways


# Eigenvalues ------------------------------------------------------------------------------------


def chains(order: int, ranks: tuple[int, ...]) -> list[Problem]:
    """Returns problems: ground states of open spin chains, judged by their energy."""
    x, z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag(np.array([1.0, -1.0]))
    y = np.array([[0, -1j], [1j, 0]])
    exchange = (np.kron(x, x) + np.kron(y, y).real + np.kron(z, z)) / 4
    # Free fermions: minus the sum of the singular values of a bidiagonal matrix.
    exact = -np.linalg.svd(np.eye(order) + np.eye(order, k=1), compute_uv=False).sum()
    operators = {
        "Ising, critical": (
            tt.chain_operator(order, site=-1.0 * z, bond=-1.0 * np.kron(x, x)),
            exact,
        ),
        "Heisenberg": (tt.chain_operator(order, bond=exchange), None),
    }
    problems = []
    for name, (a, energy) in operators.items():
        for rank in ranks:
            ways = [_our_chain(a, rank, energy), *_their_chain(a, rank, energy)]
            problems.append(Problem(f"{name}, {order} sites, rank {rank}", ways, 1.0))
    return problems


def _energies(value: float, exact: float | None) -> Answer:
    answer: Answer = {"energy": value}
    return answer if exact is None else {**answer, "error": abs(value - exact) / abs(exact)}


def _our_chain(a: tt.TTMatrix, rank: int, exact: float | None) -> Way:
    return Way(
        "tensorjax",
        "two-site DMRG",
        lambda: tt.eigsh(a, tol=1e-7, max_rank=rank, max_sweeps=60),
        lambda out: _energies(float(out[0][0]), exact),
    )


def _their_chain(a: tt.TTMatrix, rank: int, exact: float | None) -> list[Way]:
    if found("quimb") is None:
        return []
    qtn = found("quimb.tensor")
    operator = qtn.MatrixProductOperator(quimb_arrays(a.cores), shape="lrud")
    bonds = [r for r in (8, 16, 32) if r < rank] + [rank]

    def call() -> Any:
        search = qtn.DMRG2(operator, bond_dims=bonds, cutoffs=1e-14)
        search.solve(tol=1e-8, verbosity=0, max_sweeps=40)
        return float(np.real(search.energy))

    return [Way("quimb", "DMRG2", call, lambda energy: _energies(energy, exact))]
