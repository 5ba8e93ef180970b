"""Peer libraries in `bench/core`, each a class of a few lines, imported when it is made.

A peer is used as its documentation says, in every way that could be its fastest.
"""

import functools
import importlib.metadata
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench._cases import Cores, Plain
from experiments.bench._library import REFERENCES, Library, Tensorjax, Unsupported, Ways, ready
from tensorjax import tt


class TorchTT(Library):
    """Competitor torchTT; its C++ extension serves only solvers and fast products."""

    name = "torchTT"
    modules = ("torch", "torchtt")
    distribution = "torchTT"

    def train(self, cores: Cores) -> Any:
        torch, torchtt = self.imported
        return torchtt.TT([torch.tensor(c) for c in cores])

    def svd(self, x: np.ndarray, tol: float) -> Ways:
        torch, torchtt = self.imported
        tensor = torch.tensor(x)
        yield "", lambda: torchtt.TT(tensor, eps=tol)

    def round_rank(self, cores: Cores, rank: int) -> Ways:
        train = self.train(cores)
        yield "", lambda: train.round(rmax=rank)

    def round_tol(self, cores: Cores, tol: float) -> Ways:
        train = self.train(cores)
        yield "", lambda: train.round(tol)

    def round_batch(self, trains: list[Cores], rank: int) -> Ways:
        many = [self.train(t) for t in trains]
        yield "loop", lambda: [t.round(rmax=rank) for t in many]

    def add(self, x: Cores, y: Cores) -> Ways:
        a, b = self.train(x), self.train(y)
        yield "", lambda: a + b

    def inner(self, x: Cores, y: Cores) -> Ways:
        torchtt, a, b = self.imported[1], self.train(x), self.train(y)
        yield "", lambda: torchtt.dot(a, b)

    def norm(self, x: Cores) -> Ways:
        yield "", self.train(x).norm

    def hadamard(self, x: Cores, y: Cores) -> Ways:
        a, b = self.train(x), self.train(y)
        yield "", lambda: a * b

    def matvec(self, a: Cores, x: Cores) -> Ways:
        matrix, train = self.train(a), self.train(x)
        yield "", lambda: matrix @ train

    def sweep(self, trains: list[Cores], tol: float) -> Ways:
        many = [self.train(t) for t in trains]
        yield "", lambda: [t.round(tol) for t in many]


class Tntorch(Library):
    name = "tntorch"
    modules = ("torch", "tntorch")
    distribution = "tntorch"
    algorithms = ("svd", "eig")

    def cores(self, train: Any) -> Sequence[Any]:
        """Returns the cores of a train, with tntorch's Tucker factors multiplied in."""
        pairs = zip(train.cores, train.Us, strict=True)
        return [c if u is None else np.einsum("aib,ni->anb", c, u) for c, u in pairs]

    def train(self, cores: Cores, **options: Any) -> Any:
        torch, tntorch = self.imported
        return tntorch.Tensor([torch.tensor(c) for c in cores], **options)

    def svd(self, x: np.ndarray, tol: float) -> Ways:
        if x.size > 2**20:
            raise Unsupported("starts from identity cores of full rank, and their QR")
        torch, tntorch = self.imported
        tensor = torch.tensor(x)
        yield "eig", lambda: tntorch.Tensor(tensor, eps=tol, algorithm="eig")

    def round_rank(self, cores: Cores, rank: int) -> Ways:
        train, tntorch = self.train(cores), self.imported[1]
        for way in self.algorithms:
            yield way, lambda way=way: tntorch.round_tt(train, rmax=rank, algorithm=way)

    def round_tol(self, cores: Cores, tol: float) -> Ways:
        train, tntorch = self.train(cores), self.imported[1]
        for way in self.algorithms:
            yield way, lambda way=way: tntorch.round_tt(train, eps=tol, algorithm=way)

    def round_batch(self, trains: list[Cores], rank: int) -> Ways:
        batch = self.train([np.stack(c) for c in zip(*trains, strict=True)], batch=True)
        for way in self.algorithms:
            yield (
                f"{way}, batch",
                functools.partial(self.imported[1].round_tt, batch, rmax=rank, algorithm=way),
            )

    def add(self, x: Cores, y: Cores) -> Ways:
        a, b = self.train(x), self.train(y)
        yield "", lambda: a + b

    def inner(self, x: Cores, y: Cores) -> Ways:
        tntorch, a, b = self.imported[1], self.train(x), self.train(y)
        yield "", lambda: tntorch.dot(a, b)

    def norm(self, x: Cores) -> Ways:
        yield "", self.train(x).norm

    def hadamard(self, x: Cores, y: Cores) -> Ways:
        a, b = self.train(x), self.train(y)
        yield "", lambda: a * b


class Tensorly(Library):
    """Competitor TensorLy, which truncates to ranks only: it is given those of the tolerance."""

    name = "tensorly"
    modules = ("tensorly.decomposition",)
    distribution = "tensorly"

    def cores(self, train: Any) -> Sequence[Any]:
        return train.factors

    def is_train(self, result: Any) -> bool:
        return hasattr(result, "factors")

    def svd(self, x: np.ndarray, tol: float) -> Ways:
        decomposition = self.imported[0]
        ranks = tt.from_dense(x, tol=tol).ranks
        for way in ("truncated_svd", "randomized_svd"):
            yield (
                f"{way}, ranks given",
                lambda way=way: decomposition.tensor_train(x, list(ranks), svd=way, random_state=0),
            )


class Teneva(Library):
    name = "teneva"
    modules = ("teneva",)
    distribution = "teneva"

    def cores(self, train: Any) -> Sequence[Any]:
        return train

    def is_train(self, result: Any) -> bool:
        return isinstance(result, list) and isinstance(result[0], np.ndarray)

    def svd(self, x: np.ndarray, tol: float) -> Ways:
        bound = tol * float(np.linalg.norm(x)) / math.sqrt(x.ndim - 1)  # it wants it absolute
        yield "", lambda: self.imported[0].svd(x, bound)

    def round_rank(self, cores: Cores, rank: int) -> Ways:
        yield from self._truncations(cores, 0.0, rank)

    def round_tol(self, cores: Cores, tol: float) -> Ways:
        yield from self._truncations(cores, tol, 1e12)

    def _truncations(self, cores: Cores, tol: float, rank: float) -> Ways:
        for way, is_eigh in (("eigh", True), ("svd", False)):
            yield (
                way,
                functools.partial(self.imported[0].truncate, cores, tol, rank, is_eigh=is_eigh),
            )

    def round_batch(self, trains: list[Cores], rank: int) -> Ways:
        yield "eigh, loop", lambda: [self.imported[0].truncate(t, 0.0, rank) for t in trains]

    def add(self, x: Cores, y: Cores) -> Ways:
        yield "", lambda: self.imported[0].add(x, y)

    def inner(self, x: Cores, y: Cores) -> Ways:
        if x[0].shape[2] > 16:
            raise Unsupported("its inner product forms n r⁴ elements a core")
        yield "", lambda: self.imported[0].mul_scalar(x, y)

    def norm(self, x: Cores) -> Ways:
        for _ in self.inner(x, x):
            yield "", lambda: self.imported[0].norm(x)

    def hadamard(self, x: Cores, y: Cores) -> Ways:
        yield "", lambda: self.imported[0].mul(x, y)

    def sweep(self, trains: list[Cores], tol: float) -> Ways:
        yield "eigh", lambda: [self.imported[0].truncate(t, tol) for t in trains]


class Quimb(Library):
    name = "quimb"
    modules = ("quimb.tensor",)
    distribution = "quimb"
    decompositions = ("svd", "svd:eig")

    def train(self, cores: Cores) -> Any:
        first, *middle, last = cores
        arrays = [first[0], *middle, last[..., 0]]
        return self.imported[0].MatrixProductState(arrays, shape="lpr")

    def is_train(self, result: Any) -> bool:
        return hasattr(result, "arrays") or isinstance(result, tuple)

    def cores(self, train: Any) -> Sequence[Any]:
        if not isinstance(train, tuple):
            train.permute_arrays("lpr")
            train = train.arrays
        first, *middle, last = train
        return [first[None], *middle, last[..., None]]

    def svd(self, x: np.ndarray, tol: float) -> Ways:
        for way in self.decompositions:
            yield (
                way,
                lambda way=way: self.imported[0].MatrixProductState.from_dense(
                    x, x.shape, method=way, **self._cutoff(tol, x.ndim)
                ),
            )

    def round_rank(self, cores: Cores, rank: int) -> Ways:
        train, options = self.train(cores), {"max_bond": rank, "cutoff": 0.0}
        for way in self.decompositions:
            yield way, lambda way=way: self._compressed(train, method=way, **options)
        for way in ("src", "srcmps", "src-oversample"):
            yield (
                way,
                functools.partial(
                    self.imported[0].tensor_network_1d_compress, train, method=way, **options
                ),
            )
        yield "svd:eig, jit", self._jitted(cores, method="svd:eig", **options)

    def _jitted(self, cores: Cores, **options: Any) -> Callable[[], Any]:
        def compress(cores: Any) -> Any:
            train = self._compressed(self.train(cores), **options)
            train.permute_arrays("lpr")
            return tuple(train.arrays)

        compiled, arrays = jax.jit(compress), [jnp.asarray(c) for c in cores]
        return lambda: ready(compiled(arrays))

    def round_tol(self, cores: Cores, tol: float) -> Ways:
        train, options = self.train(cores), self._cutoff(tol, len(cores))
        for way in self.decompositions:
            yield way, lambda way=way: self._compressed(train, method=way, **options)

    def round_batch(self, trains: list[Cores], rank: int) -> Ways:
        many, options = [self.train(t) for t in trains], {"max_bond": rank, "cutoff": 0.0}
        yield (
            "svd:eig, loop",
            lambda: [self._compressed(t, method="svd:eig", **options) for t in many],
        )

    def add(self, x: Cores, y: Cores) -> Ways:
        a, b = self.train(x), self.train(y)
        yield "", lambda: a + b

    def inner(self, x: Cores, y: Cores) -> Ways:
        a, b = self.train(x), self.train(y)
        yield "@", lambda: a.H @ b
        yield "^", lambda: (a.H & b) ^ ...

    def norm(self, x: Cores) -> Ways:
        yield "", self.train(x).norm

    def matvec(self, a: Cores, x: Cores) -> Ways:
        first, *middle, last = (c.transpose(0, 3, 1, 2) for c in a)
        operator = self.imported[0].MatrixProductOperator([first[0], *middle, last[:, 0]])
        train = self.train(x)
        yield "", lambda: operator.apply(train, compress=False)

    def sweep(self, trains: list[Cores], tol: float) -> Ways:
        many, options = [self.train(t) for t in trains], self._cutoff(tol, len(trains[0]))
        yield "svd:eig", lambda: [self._compressed(t, method="svd:eig", **options) for t in many]

    @staticmethod
    def _cutoff(tol: float, order: int) -> dict[str, Any]:
        """Returns quimb's truncation options for a relative tolerance of the whole train."""
        return {"cutoff": tol**2 / (order - 1), "cutoff_mode": "rsum2"}

    @staticmethod
    def _compressed(train: Any, **options: Any) -> Any:
        train = train.copy()
        train.compress(**options)
        return train


class Ttax(Library):
    """Competitor ttax, which truncates to ranks only; its sum fails under jit with current JAX."""

    name = "ttax"
    modules = ("ttax",)
    distribution = "ttax"
    threads = "default"
    compiled = True

    def train(self, cores: Cores) -> Any:
        return self.imported[0].TT([jnp.asarray(c) for c in cores])

    def is_train(self, result: Any) -> bool:
        return hasattr(result, "tt_cores")

    def cores(self, train: Any) -> Sequence[Any]:
        cores = train.tt_cores
        return [c[:, :, 0] for c in cores] if train.is_tt_matrix else cores

    def _jitted(self, function: Callable[..., Any], *args: Any) -> Ways:
        jitted = jax.jit(function)
        yield "jit", lambda: self._done(jitted(*args))

    @staticmethod
    def _done(result: Any) -> Any:
        ready(getattr(result, "tt_cores", result))
        return result

    def round_rank(self, cores: Cores, rank: int) -> Ways:
        yield from self._jitted(lambda t: self.imported[0].round(t, rank), self.train(cores))

    def round_batch(self, trains: list[Cores], rank: int) -> Ways:
        batch = [np.stack(c) for c in zip(*trains, strict=True)]
        yield from self.round_rank(batch, rank)

    def add(self, x: Cores, y: Cores) -> Ways:
        a, b = self.train(x), self.train(y)
        yield "", lambda: self._done(self.imported[0].add(a, b))

    def inner(self, x: Cores, y: Cores) -> Ways:
        yield from self._jitted(self.imported[0].flat_inner, self.train(x), self.train(y))

    def norm(self, x: Cores) -> Ways:
        flat_inner = self.imported[0].flat_inner
        yield from self._jitted(lambda t: jnp.sqrt(flat_inner(t, t)), self.train(x))

    def hadamard(self, x: Cores, y: Cores) -> Ways:
        yield from self._jitted(self.imported[0].multiply, self.train(x), self.train(y))

    def matvec(self, a: Cores, x: Cores) -> Ways:
        matrix, column = (
            self.imported[0].TTMatrix([jnp.asarray(c) for c in cores])
            for cores in (a, [c[:, :, None] for c in x])
        )
        yield from self._jitted(self.imported[0].matmul, matrix, column)


class ScikitLearn(Library):
    """Competitor scikit-learn: its random projections, without the check for finite input."""

    name = "scikit-learn"
    modules = ("sklearn", "sklearn.random_projection")
    distribution = "scikit-learn"

    def plain(self, result: Any) -> Plain:
        return np.asarray(result)

    def project(self, x: np.ndarray, size: int) -> Ways:
        sklearn, random_projection = self.imported
        dense = random_projection.GaussianRandomProjection(size, random_state=0).fit(x)
        yield "Gaussian", lambda: dense.transform(x)
        with_zeros = random_projection.SparseRandomProjection(
            size, dense_output=True, random_state=0
        )
        yield "sparse", functools.partial(with_zeros.fit(x).transform, x)

        def unchecked() -> Any:
            with sklearn.config_context(assume_finite=True):
                return dense.transform(x)

        yield "Gaussian, assume_finite", unchecked


PEERS: tuple[type[Library], ...] = (
    TorchTT,
    Tntorch,
    Tensorly,
    Teneva,
    Quimb,
    Ttax,
    ScikitLearn,
)


def load(skipped: Sequence[str] = ()) -> tuple[list[Library], list[dict[str, str]]]:
    """Creates all competitors that are installed, ours first.

    Args:
        skipped: Names of peers to leave out.

    Returns:
        The competitors, ours first, and a row for each peer: its version, or why it is missing.
    """
    libraries: list[Library] = [Tensorjax()]
    rows = []
    for peer in PEERS:
        row = {"peer": peer.name, "version": "", "missing because": ""}
        try:
            if peer.name in skipped:
                raise ImportError("left out by --skip")
            libraries.append(peer())
            row["version"] = importlib.metadata.version(peer.distribution)
        except ModuleNotFoundError as error:
            row["missing because"] = f"'{error.name}' is not installed"
        except Exception as error:  # a peer may break on a newer dependency in any way
            row["missing because"] = " ".join(str(error).split())[:80]
        rows.append(row)
    return libraries + [reference() for reference in REFERENCES], rows
