"""Trainings that the tests kill: they go on from their store, and say what each step found.

Each line of the input, such as ``/tmp/store 18 overlap block1``, is one of them, in a process of
its own. They are forked, before JAX has begun to work: most of their time would go into imports.
"""

import os
import sys
import traceback
import warnings
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

from tensorjax import offload
from tests import offload_cases as cases


def main(folder: str, steps: int, schedule: str, in_memory: str) -> None:
    with (
        cases.store(Path(folder)) as store,
        offload.Trainer(
            cases.layers(head=True),
            cases.params(head=True),
            cases.optimizer(),
            store=store,
            clip=0.5,
            microbatches=2,
            schedule=schedule,  # type: ignore[arg-type]
            in_memory=tuple(filter(None, in_memory.split(","))),
            key=jax.random.key(1),
            commit_every=1,
        ) as trainer,
    ):
        print("begin", trainer.steps, trainer.data, flush=True)
        while trainer.steps < steps:
            found = trainer.step(cases.batch(trainer.steps), data={"next": trainer.steps + 1})
            print("step", found.number, found.loss.hex(), flush=True)
        trainer.commit()
        print("end", flush=True)


def forked(folder: str, steps: str, schedule: str, in_memory: str) -> int:
    """How a training ended, in a process of its own whose number is said first."""
    if (number := os.fork()) == 0:
        try:
            print("process", os.getpid(), flush=True)
            main(folder, int(steps), schedule, in_memory)
            status = 0
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="os.fork")
    for line in sys.stdin:
        print("gone", forked(*line.split()), flush=True)
