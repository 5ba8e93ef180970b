"""Black-box functions by cross approximation, with drawn parameters; see README.md."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="functions",
        title="Functions by cross approximation",
        module="experiments.functions.main",
        paper="Núñez Fernández et al., SciPost Phys. 18, 104 (2025)",
        summary="drawn functions by cross approximation, beside peers; an integral; patches",
        claim="−5.49604152, an integral over ten variables (judged: to nine digits)",
        basis="recalled",
        quick="60 s",
        packages=("matplotlib", "torchTT", "teneva", "tntorch"),
    ),
)
