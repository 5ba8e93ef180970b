"""A training that the tests kill: it goes on from its store, and says what each step found."""

import os
import sys
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


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
