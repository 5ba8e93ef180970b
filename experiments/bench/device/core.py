"""Part "core" of `bench/device`: TT-SVD, rounding and arithmetic beside torchTT and the CPU.

The cases are those of `bench/core`, in double precision. Ours runs twice, with its arrays on the
device and on the host; torchTT has its tensors on the device, if PyTorch has one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from experiments.bench import _timing
from experiments.bench._cases import GROUPS, SMALL, Case, Cores, Sizes
from experiments.bench._library import Library, Tensorjax, Unsupported, Ways
from experiments.bench._peers import TorchTT
from experiments.bench._solving import torch_device, waited
from experiments.bench.device.rows import Budget, Emit, run_case

_REPEATS = 5
# One order of every kind: on accelerators each compiles for a while.
SIZES = Sizes(dense=((4,) * 12, (16,) * 6), orders=(20,))
ORDER = ("rounding", "svd", "arithmetic", "ranks", "projection")
# Variants of ours that are tried: each compiles for a while.
_OURS = {"", "jit", "jit, vmap", "TTRP"}


class OnHost(Tensorjax):
    """Competitor: the toolkit with its arrays on the host."""

    name = "tensorjax on the CPU"


class TorchTTThere(TorchTT):
    """Competitor: torchTT with its tensors on the device that JAX uses."""

    def train(self, cores: Cores) -> Any:
        torch, torchtt = self.imported
        return torchtt.TT([torch.tensor(c, device=torch_device(torch)) for c in cores])

    def svd(self, x: np.ndarray, tol: float) -> Ways:
        torch, torchtt = self.imported
        tensor = torch.tensor(x, device=torch_device(torch))
        yield "", lambda: torchtt.TT(tensor, eps=tol)

    def cores(self, train: Any) -> Any:
        return [c.cpu() for c in train.cores]

    def plain(self, result: Any) -> Any:
        return super().plain(result.cpu() if hasattr(result, "cpu") else result)


def run(budget: Budget, emit: Emit) -> None:
    """Times every case of `bench/core` on the device, by every library."""
    jax.config.update("jax_enable_x64", True)
    # What starts cold compiles all it needs, and counts.
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    libraries: list[Library] = [Tensorjax()]
    if jax.default_backend() != "cpu":
        libraries.append(OnHost())
    try:
        libraries.append(TorchTTThere())
    except ModuleNotFoundError as error:
        emit.left_out("torchTT", f"'{error.name}' is not installed")
    for case in cases(budget.tiny):
        ours: list[float] = []
        for library in libraries:
            for variant, call in _ways(case, library, emit):
                label = ", ".join(filter(None, (case.name, library.name, variant)))
                find = _timed(case, library, variant, call, budget, ours)
                run_case(f"{case.group}: {label}", find, budget, emit)


def cases(tiny: bool) -> Iterator[Case]:
    """Yields the cases of `bench/core`, drawn on the host."""
    rng = np.random.default_rng(0)
    for group in ORDER:
        drawn = GROUPS[group](SMALL if tiny else SIZES, rng)
        while True:
            with jax.default_device(host()):
                case = next(drawn, None)
            if case is None:
                break
            yield case
            if tiny:
                break


def host() -> Any:
    """Returns JAX's CPU device."""
    return jax.devices("cpu")[0]


def _ways(case: Case, library: Library, emit: Emit) -> list[tuple[str, Callable[[], Any]]]:
    """Returns a library's calls for a case, with arrays on the right device."""
    operation = getattr(library, case.operation, None)
    if operation is None:
        return []
    try:
        if isinstance(library, OnHost):
            with jax.default_device(host()):
                found = list(operation(**case.inputs))
            found = [(variant, _there(call)) for variant, call in found]
        else:
            found = list(operation(**case.inputs))
    except Unsupported as error:
        emit.left_out(f"{case.group}: {case.name}, {library.name}", str(error))
        return []
    if isinstance(library, TorchTT):
        return [(variant, waited(library.imported[0], call)) for variant, call in found]
    return [(variant, call) for variant, call in found if variant in _OURS]


def _there(call: Callable[[], Any]) -> Callable[[], Any]:
    def found() -> Any:
        with jax.default_device(host()):
            return call()

    return found


def _timed(
    case: Case,
    library: Library,
    variant: str,
    call: Callable[[], Any],
    budget: Budget,
    ours: list[float],
) -> Callable[[], dict[str, Any]]:
    def find() -> dict[str, Any]:
        before = jax.clear_caches if case.cold and library.name == "tensorjax" else None
        timing, result = _timing.first_call(
            _timing.Lane(library.name, variant, call, before=before)
        )
        if timing.failure:
            raise RuntimeError(timing.failure)
        _timing.interleave([timing], 1 if budget.tiny or case.cold else _REPEATS)
        with jax.default_device(host()):
            plain = library.plain(result)
            error = None if plain is None else case.error(plain)
        if library.name == "tensorjax":
            ours.append(timing.median)
        return {
            "ms": 1e3 * timing.median,
            "time over our fastest": timing.median / min(ours) if ours else None,
            "first call s": timing.first,
            "programs": timing.programs,
            "error": error,
        }

    return find
