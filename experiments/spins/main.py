"""Ground state of the critical Ising chain, as a tensor train and as a MERA.

``python -m experiments run spins`` finds the state by DMRG (`tt.eigsh`), converts it to a MERA
(`convert.tt_to_mera`), refines that (`mera.refine`), and compares energy, ⟨σz⟩ and correlations of
each with the exact values. README.md in this folder says what came out.

Source of the exact values: Pfeuty, Ann. Phys. 57 (1970) 79. MERA of this chain: Evenbly, Vidal,
arXiv 0707.1454.
"""

import time
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from experiments import Run
from experiments.spins import exact, figure, measure
from experiments.spins.measure import Measured
from tensorjax import convert, mera, tt

Method = Literal["identity", "procrustes", "entropy"]


@dataclass(frozen=True)
class Config:
    """Options of the experiment; the defaults take some minutes on two CPU cores."""

    order: int = 64
    """Number of spins."""
    tol: float = 1e-6
    """Residual asked of the ground state, relative to its energy."""
    mera_tols: tuple[float, ...] = (0.1,)
    """Relative errors asked of the MERAs."""
    disentangle: tuple[Method, ...] = ("identity", "procrustes")
    """Disentanglers: "identity" has none, which makes a tree of isometries."""
    restarts: int = 2
    """Random starts of each search for a disentangler."""
    steps: int = 100
    """Steps of refinement, at most."""
    distances: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
    """Distances of the correlations, about the middle; those that do not fit are left out."""
    seed: int = 0
    """Seed of the random start of DMRG."""

    def __post_init__(self) -> None:
        """Raises ValueError for options that would fail late in a run."""
        if self.order < 8:
            raise ValueError(f"order: expected at least 8 spins, got {self.order}")
        for name in ("mera_tols", "disentangle", "distances"):
            if not getattr(self, name):
                raise ValueError(f"{name}: expected at least one, got none")

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: 32 spins, and one MERA."""
        return cls(
            order=32, mera_tols=(0.1,), disentangle=("identity",), steps=50,
            distances=(1, 2, 4, 8, 16),
        )  # fmt: skip


class _State(NamedTuple):
    """State as TT or MERA, with its distance to DMRG's train and its measured values."""

    held: Any
    distance: float
    seconds: float
    measured: Measured


def run(config: Config, run: Run) -> None:
    """Measures all states in double precision, then draws the figure."""
    distances = [r for r in config.distances if r <= config.order - 4]
    with jax.enable_x64(True):
        truth = measure.exactly(config.order, distances)
        ground, value, info = _ground_state(config)
        run.console.print(str(info))
        found = measure.of_train(ground, distances)
        states = {"TT": _State(ground, 0.0, info.seconds, found)}
        for tol in config.mera_tols:
            states |= _compressed(config, run, ground, tol, distances)
        rows = [_row(name, state, ground, truth) for name, state in states.items()]
    measured = {name: state.measured for name, state in states.items()}
    run.table("energy", rows, caption=ENERGY.format(config.order, truth.energy), key=["state"])
    run.table(
        "correlations",
        _correlations(distances, truth, measured),
        caption="⟨σx_i σx_j⟩ about the middle of the chain, against the distance",
        key=["distance"],
    )
    run.metric("energy_exact", truth.energy)
    run.metric("energy_error_tt", value - truth.energy)
    run.metric("residual_tt", float(info.residual[0]))
    run.metric("converged", info.status == "converged")
    meras = [row for row in rows if row["TT, same error"] is not None]
    run.metric("mera_pays", any(row["entries"] < row["TT, same error"] for row in meras))
    run.figure("spins", figure.overview(rows, distances, truth, measured), caption=CAPTION)
    error = abs(value / truth.energy - 1)
    run.compare(f"relative error {error:.1e}, {config.order} sites", bool(error <= 1e-6))


def _ground_state(config: Config) -> tuple[tt.TT, float, tt.EigInfo]:
    operator = tt.chain_operator(
        config.order, site=-exact.FIELD * measure.Z, bond=np.kron(-measure.X, measure.X)
    )
    key = jax.random.key(config.seed)
    values, (ground,), info = tt.eigsh(operator, tol=config.tol, key=key)
    return ground, float(values[0]), info


def _compressed(
    config: Config, run: Run, ground: tt.TT, tol: float, distances: list[int]
) -> dict[str, _State]:
    """Returns the ground state at a tolerance: rounded, and as MERAs, converted and refined."""
    out: dict[str, _State] = {}
    start = time.perf_counter()
    small = tt.round(ground, tol=tol)
    seconds = time.perf_counter() - start
    error = float(tt.distance(small, ground))
    out[f"TT, {tol:g}"] = _State(small, error, seconds, measure.of_train(small, distances))
    for method in run.progress(config.disentangle, f"MERAs, tolerance {tol:g}"):
        found, info = convert.tt_to_mera(
            ground, tol=tol, disentangle=method, restarts=config.restarts, iterations=20,
            fallback=False,
        )  # fmt: skip
        kept = sum(c.how != "identity" for layer in info.layers for c in layer.cuts)
        name = f"{'MERA' if kept else 'tree'}, {method}, {tol:g}"
        out[name] = _State(found, info.error, info.seconds, measure.of_mera(found, distances))
        start = time.perf_counter()
        better, refined = mera.refine(found, ground, steps=config.steps)
        seconds = time.perf_counter() - start
        error, values = min(refined.errors), measure.of_mera(better, distances)
        out[f"{name}, refined"] = _State(better, error, seconds, values)
        run.console.print(f"{name}: {kept} disentanglers")
    return out


def _row(name: str, state: _State, ground: tt.TT, truth: Measured) -> dict[str, Any]:
    m = state.measured
    return {
        "state": name,
        "entries": state.held.size,
        "distance to TT": state.distance,
        "TT, same error": None if isinstance(state.held, tt.TT) else _equivalent(state, ground),
        "energy": m.energy,
        "error per site": (m.energy - truth.energy) / len(truth.field),
        "largest error of ⟨σz⟩": float(np.abs(m.field - truth.field).max()),
        "largest error of ⟨σxσx⟩": float(np.abs(m.correlations - truth.correlations).max()),
        "seconds": state.seconds,
    }


def _equivalent(state: _State, ground: tt.TT) -> int:
    return tt.round(ground, tol=max(state.distance, 1e-12)).size


def _correlations(
    distances: list[int], truth: Measured, measured: dict[str, Measured]
) -> list[dict[str, Any]]:
    return [
        {
            "distance": r,
            "exact": truth.correlations[k],
            **{f"{name} − exact": m.correlations[k] - truth.correlations[k]
               for name, m in measured.items()},
        }
        for k, r in enumerate(distances)
    ]  # fmt: skip


ENERGY = (
    "Ground state of the critical Ising chain of {} spins, exact energy {:.10f}. Distances are "
    "‖state − TT‖; “TT, same error”: entries of the train rounded to that distance; seconds: of "
    "the search, conversion or refinement, compilation included"
)
CAPTION = (
    "(a) Correlations against the distance: exact, and in each state. (b) Errors of ⟨σz⟩ along the "
    "chain. (c) Entries stored against the error of the energy per site."
)
