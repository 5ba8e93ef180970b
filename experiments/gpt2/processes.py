"""Processes that train together: start, agreement on options, end if one is lost.

Finding each other, watching each other and sending arrays is `jax.distributed` and the runtime
under it. Here are the options for that, what all processes have to agree on, and the messages.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments import Run

Cluster = Literal["none", "auto", "slurm", "ompi", "mpi4py", "k8s"]
# What a device says that has no room: no sign that another process is gone.
_OWN_FAULTS = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT")


class LostProcessError(RuntimeError):
    """Raised if this process cannot reach another one of the training."""


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Options by which a process finds the others of a distributed training.

    Attributes:
        coordinator: HOST:PORT of process 0; `JAX_COORDINATOR_ADDRESS` if None.
        count: How many processes there are; `JAX_NUM_PROCESSES` if None.
        index: Which one this is, from 0; `JAX_PROCESS_ID` if None.
        cluster: Who else tells: a cluster that JAX knows, "auto" for the one it finds, or "none".
        timeout: Seconds without a sign of life after which a process counts as lost.
    """

    coordinator: str | None = None
    count: int | None = None
    index: int | None = None
    cluster: Cluster = "none"
    timeout: int = 60

    def start(self, run: Run, devices: int | None) -> None:
        """Joins the other processes, if any; all but the first discard their results.

        JAX must not have begun to work: then a CPU simulates no devices any more.

        Args:
            run: Of this process.
            devices: Of all processes together, for the number that a CPU simulates; or None.

        Raises:
            ValueError: Some of the options are given, but not all that are needed, or the devices
                cannot be shared out.
        """
        given = {
            "coordinator": self.coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS"),
            "processes": _number(self.count, "JAX_NUM_PROCESSES"),
            "process": _number(self.index, "JAX_PROCESS_ID"),
        }
        if self.cluster == "none":
            if all(value is None for value in given.values()):
                if devices is not None and devices > 0:
                    _simulate(devices, 1)
                return
            missing = [name for name, value in given.items() if value is None]
            if missing:
                raise ValueError(
                    f"{missing[0]}: expected with the other options of several processes, got "
                    "none; give --coordinator, --processes and --process, the environment "
                    "variables that stand for them, or --cluster"
                )
        if not jax.distributed.is_initialized():
            jax.distributed.initialize(
                given["coordinator"],
                given["processes"],
                given["process"],
                cluster_detection_method={"none": "deactivate", "auto": None}.get(
                    self.cluster, self.cluster
                ),
                initialization_timeout=self.timeout,
                heartbeat_timeout_seconds=self.timeout,
                shutdown_timeout_seconds=self.timeout,
            )
        count = given["processes"]
        if count is None and self.cluster in ("auto", "slurm"):
            count = _number(None, "SLURM_NTASKS")
        if devices is not None and count is not None:
            _simulate(devices, count)
        place = f"process {jax.process_index()} of {jax.process_count()}"
        run.console.print(
            f"{place}, with {jax.local_device_count()} of {jax.device_count()} devices; one that "
            f"gives no sign of life for {self.timeout} s ends all, and checkpoints stay"
        )
        if jax.process_index() > 0:
            run.discard(place)


def agree(settings: Mapping[str, Any]) -> None:
    """Raises ValueError unless all processes were given the same options and texts.

    Raises:
        ValueError: This one differs from process 0, by name.
    """
    if jax.process_count() == 1:
        return
    for name, value in sorted(settings.items()):
        text = np.frombuffer(repr(value).encode()[:256].ljust(256), np.uint8)
        first = multihost_utils.broadcast_one_to_all(text)
        if not np.array_equal(first, text):
            theirs = bytes(np.asarray(first, np.uint8)).decode(errors="replace").strip()
            raise ValueError(
                f"{name}: expected {theirs}, as process 0 has it, got {value!r} in process "
                f"{jax.process_index()}; start all processes with the same options and texts"
            )


def first_says(value: bool) -> bool:
    """Returns the value of process 0 in all processes."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.array(value)))


def everywhere(tree: Any) -> Any:
    """Gathers the arrays of a pytree, whole, in the memory of every process."""
    if jax.process_count() == 1:
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)


@contextlib.contextmanager
def together(folder: Any) -> Iterator[None]:
    """Context manager that explains failures of distributed training, and what is kept.

    Raises:
        LostProcessError: In place of the runtime's error, where it is not one of this device.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        if jax.process_count() == 1 or text.startswith(_OWN_FAULTS):
            raise
        raise LostProcessError(
            f"process {jax.process_index()} of {jax.process_count()} lost another one and cannot "
            f"go on ({text.splitlines()[0][:200]}); the last whole checkpoint is kept in {folder}: "
            "start all processes again with the same options, on as many devices as there are"
        ) from error


def _number(given: int | None, variable: str) -> int | None:
    text = os.environ.get(variable)
    if given is not None or text is None:
        return given
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{variable}: expected an integer, got {text!r}") from None


def _simulate(devices: int, count: int) -> None:
    """Makes a CPU simulate this process's part of all devices, before JAX starts.

    Unless XLA_FLAGS says how many.

    It has an effect only before JAX begins to work.
    """
    if devices % count:
        raise ValueError(
            f"devices: expected a multiple of {count} processes, which share them, got {devices}"
        )
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # in use already
            jax.config.update("jax_num_cpu_devices", devices // count)
