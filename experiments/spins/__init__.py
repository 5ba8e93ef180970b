"""The critical Ising chain by DMRG, as a tensor train and as a MERA; see README.md."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="spins",
        title="Critical Ising chain",
        module="experiments.spins.main",
        paper="Pfeuty, Ann. Phys. 57 (1970) 79; Evenbly, Vidal, arXiv 0707.1454",
        summary="ground state of the critical Ising chain: energy, ⟨σz⟩, correlations, TT and MERA",
        claim="the exact energy of the critical chain (judged: to 1e-6 of it)",
        basis="papers recalled",
        quick="45 s",
        packages=("matplotlib",),
    ),
)
