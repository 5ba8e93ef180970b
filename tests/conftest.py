"""The strictest modes of JAX, on eight simulated CPU devices, for every test.

Doctests do not pass through here: they run as a user would, in JAX's default modes.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

from tests.compiling import flags, share_contexts
from tests.drawing import drawn

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Idle threads of BLAS spin: those of one worker would hold the cores that the other one needs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Read once, when JAX first asks for its devices: before anything else imports it.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags(devices=8)}"

import jax
import numpy as np
import pytest

from tensorjax import _placement

LONG_CASES = frozenset((Path(__file__).parent / "long_cases.txt").read_text("utf-8").splitlines())

end_contexts = share_contexts()
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option by which the gate draws slow cases."""
    parser.addoption("--draw", metavar="SEED", help="of each test's slow cases run a drawn part")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the cases of `long_cases.txt` as slow, and draws slow cases where `--draw` is given.

    The cases of the file are those that a measured run of all tests found to take longest: single
    parameters of a table, which a mark cannot name without the test being written around it. Of
    the same test others, which take less, stay.
    """
    for item in items:
        if item.nodeid in LONG_CASES:
            item.add_marker(pytest.mark.slow)
    seed = config.getoption("--draw")
    if seed is not None:
        slow = {item.nodeid for item in items if item.get_closest_marker("slow")}
        others = {item.nodeid.partition("[")[0] for item in items if item.nodeid not in slow}
        left_out = slow - drawn(slow, seed, others)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]


def pytest_collection_finish() -> None:
    """Leaves modules and tests out of every later search for garbage, and searches less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True, scope="module")
def _caches() -> Iterator[None]:
    """Drops the compiled programs of a file: those of all files would exhaust memory maps."""
    _placement._is_alone()  # asked once: not first by a test that has JAX count one device
    yield
    jax.clear_caches()
    end_contexts()


@pytest.fixture
def key() -> jax.Array:
    """A key of `jax.random`, the same for every test."""
    return jax.random.key(20260101)


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator of NumPy, the same for every test."""
    return np.random.default_rng(20260101)
