"""Pipeline of a training step: order of layers, weights, passes, gradients, updates, threads."""

import atexit
import contextlib
import functools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tensorjax.offload._processes import Processes
from tensorjax.offload._training.commits import Commits, Progress
from tensorjax.offload._training.options import Options, Schedule
from tensorjax.offload._training.passes.engine import Engine
from tensorjax.offload._training.passes.gradient_transfers import Gradients
from tensorjax.offload._training.passes.layers import Layer
from tensorjax.offload._training.passes.passes import Passes
from tensorjax.offload._training.passes.weight_stream import WeightStream
from tensorjax.offload._training.storage.arrays import view
from tensorjax.offload._training.storage.process_shards import Shards
from tensorjax.offload._training.storage.storage import StoreStorage
from tensorjax.offload._training.trace import Trace
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer
from tensorjax.offload._training.updates.parameter_groups import Group
from tensorjax.offload._training.updates.read_budget import Shares
from tensorjax.offload._training.updates.updater import Updater


class Order:
    """Order in which a pipeline passes through layers, over all steps, with deadlines of updates.

    Time is counted in positions: one for each layer of the forward pass and, but for the last one,
    of the backward pass, on through all steps. A version of parameters is the number of updates
    that they have had.

    Args:
      clip: whether gradients are clipped.

    Attributes:
      uses: the groups that each position of a step needs.
      stale: whether a step computes with parameters that lack the last update.
      gated: whether updates wait for the end of the backward pass.
    """

    def __init__(self, layers: Sequence[Layer], schedule: Schedule, *, clip: bool) -> None:
        self.forward = [layer.uses for layer in layers]
        self.uses = [*self.forward, *self.forward[-2::-1]]
        self.stale = schedule == "one_step_stale"
        self.gated = not self.stale and (clip or schedule != "overlap")
        self._first = {g: n for n, uses in reversed(list(enumerate(self.forward))) for g in uses}
        self._last = {g: n for n, uses in enumerate(self.uses) for g in uses}
        backward = [g for uses in reversed(self.forward) for g in uses]
        self._gradients = list(dict.fromkeys(reversed(backward)))[::-1]

    def start(self, step: int) -> int:
        """Returns the number of a step's first layer pass in the pipeline's order of all steps."""
        return step * len(self.uses)

    def version(self, step: int) -> int:
        """Returns how many updates a step's parameters have had, by the pipeline's order."""
        return max(step - 1, 0) if self.stale else step

    def deadline(self, group: str, version: int) -> float:
        """Returns which of the pipeline's layer passes first needs a group's parameters updated."""
        return float(self.start(self._step(version)) + self._first[group])

    def due(self, group: str, version: int) -> float:
        """Returns which layer pass in the pipeline's order last uses parameters after an update.

        A reader that needs the version earlier brings the write forward (`Queue.hasten`).
        """
        return float(self.start(self._step(version)) + self._last[group])

    def coming(self, version: int) -> dict[str, tuple[int, float]]:
        """Returns the pipeline's deadline of each group's next update, in order of gradients."""
        return {g: (version, self.deadline(g, version)) for g in self._gradients}

    def _step(self, version: int) -> int:
        """Returns the step in the pipeline's order that has parameters of a number of updates."""
        return version + 1 if self.stale else version


class Pipeline:
    """Pipeline of an offloaded training: weight stream, passes, gradients, updates.

    Args:
      groups: of its parameters, by name.
      order: in which layers are computed.
      progress: of the training; gradients and scale of stale updates are kept there.
      shards: which part of the parameters is this process's.
      storage: of groups in the store; None without one.
      device_bytes: that parameters may take on the device.
      key: of `jax.random`, or None.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        groups: Mapping[str, Group],
        options: Options,
        order: Order,
        progress: Progress,
        *,
        optimizer: HostOptimizer,
        engine: Engine,
        shards: Shards,
        processes: Processes,
        storage: StoreStorage | None,
        shares: Shares | None,
        device_bytes: int,
        key: jax.Array | None,
        trace: Trace,
    ) -> None:
        self._groups, self._options, self._order, self._progress = groups, options, order, progress
        self._engine, self._shards, self._processes = engine, shards, processes
        self._trace, self._lent = trace, engine.lends
        self._stream = self._make_stream(device_bytes, shares)
        self.updater = self._make_updater(storage, shares)
        self._gradients = Gradients(
            layers,
            {name: tuple(x.dtype for x in group.params.leaves) for name, group in groups.items()},
            engine,
            optimizer,
            shards,
            measured=options.clip is not None,
            offer=self._offer,
            trace=trace,
        )
        # A host would need memory for two layers at once. And parameters from the store would wait
        # for layers that the device was given before: transfers to it do.
        ahead = self._lent and all(group.storage.in_place for group in groups.values())
        self._passes = Passes(
            layers, engine, self._stream, self._gradients, ahead=ahead, key=key, trace=trace
        )

    def _make_stream(self, device_bytes: int, shares: Shares | None) -> WeightStream:
        """Creates the pipeline's weight stream to the device, and starts its threads."""
        groups, order = self._groups, self._order
        sizes = {name: group.device.nbytes for name, group in groups.items()}
        stored = {name: sizes[name] for name, group in groups.items() if not group.storage.in_place}
        unbounded = self._options.gradient_bytes is None
        return WeightStream(
            order.uses,
            sizes,
            capacity=device_bytes,
            ahead=4,
            early=shares.early if shares else 0,
            handed=2 * max(stored.values(), default=0) if unbounded else 0,
            stored=stored.keys(),
            start=order.start(self._progress.steps),
            version=order.version,
            read=lambda g, deadline, step: groups[g].storage.read(
                groups[g].device, deadline=deadline, step=step
            ),
            place=self._place,
            trace=self._trace,
            failed=self._stop_updates,
        )

    def _make_updater(self, storage: StoreStorage | None, shares: Shares | None) -> Updater:
        """Creates the pipeline's optimiser updater, and starts its threads."""
        options = self._options
        return Updater(
            dict(self._groups),
            spill=storage if options.spills else None,
            gradient_bytes=options.gradient_bytes,
            lookahead=options.lookahead,
            early=options.early,
            staging=shares.staging if shares else None,
            together=shares is not None and shares.tight,
            start=self._order.version(self._progress.steps),
            due=self._order.due,
            updated=self._stream.updated,
            written=self._stream.written,
            failed=self.fail,
            trace=self._trace,
        )

    @property
    def failed(self) -> bool:
        """Whether a thread of the training pipeline failed, so that no step can follow."""
        return self._stream.failed

    def step(
        self, batches: Sequence[Any], *, checked: Callable[[], None]
    ) -> tuple[float, float | None]:
        """Runs one step in the pipeline; returns loss and gradient norm while updates may go on.

        Args:
          checked: called once the loss is known to be finite: from then on groups are updated.
        """
        step, base = self._progress.steps, self._order.start(self._progress.steps)
        self._expect()
        inputs = self._passes.forward(step, base, batches)
        if self._order.gated:
            self.updater.gate()
        elif self._order.stale:
            self.updater.release(self._progress.scale)
        loss = self._passes.backward(step, base, batches, inputs, checked=checked)
        norm = None if self._options.clip is None else self._norm()
        self._finish(norm)
        return loss, norm

    def evaluate(self, batches: Sequence[Any]) -> float:
        """Computes, in the pipeline, the loss of a batch by a forward pass alone."""
        try:
            base = self._order.start(self._progress.steps)
            return self._passes.evaluate(self._progress.steps, base, batches)
        finally:
            if not self.failed:
                self.rewind()

    def rewind(self) -> None:
        """Resets the training pipeline to the first layer, after an error or an evaluation."""
        if not self._order.stale:
            self.updater.ungate()
        self._stream.rewind(self._order.start(self._progress.steps))

    def fail(self, error: BaseException) -> None:
        """Makes all threads of the pipeline that wait for parameters of a step raise ``error``."""
        self._stream.fail(error)

    def statistics(self) -> dict[str, int]:
        """Returns the peak bytes of each kind of memory in the training pipeline."""
        return {
            "device_peak_bytes": self._stream.peak,
            "gradient_peak_bytes": self.updater.peak_gradient,
            "update_peak_bytes": self.updater.peak_update,
            "host_peak_bytes": self.updater.peak_host,
            "handed_peak_bytes": self._stream.peak_handed,
            "activation_peak_bytes": self._passes.peak_activations,
        }

    def close(self) -> None:
        """Ends all threads of the training pipeline, even if closing one part fails."""
        with contextlib.ExitStack() as stack:
            for part in (self._stream, self.updater, self._gradients):
                stack.callback(part.close)

    def _expect(self) -> None:
        """Tells the pipeline's updater in which order the gradients of a step will come."""
        version = self._order.version(self._progress.steps) + 1
        if self._order.stale:
            if not self._progress.pending:
                return
            version = self._progress.steps
        self.updater.expect(self._order.coming(version), gated=self._order.gated)

    def _norm(self) -> float:
        """Computes, for the pipeline, the norm of all gradients of a step, over all processes."""
        norm = self._processes.norm(self._gradients.norm)
        if not np.isfinite(norm):
            raise FloatingPointError(
                f"clip: the norm of all gradients is {norm} in step {self._progress.steps + 1}: "
                "each is finite, but not their norm, which is beyond double precision; nothing of "
                "this step was applied or committed: go on from the last commit"
            )
        return norm

    def _finish(self, norm: float | None) -> None:
        """Ends a step of the pipeline: starts updates that waited for the norm; waits if asked."""
        clip, scale = self._options.clip, None
        if clip is not None and norm is not None:
            scale = np.float64(1.0 if norm <= clip else clip / norm)
        if self._order.stale:
            self._progress.scale = scale
            return
        if self._order.gated:
            self.updater.release(scale)
        if self._options.waits:
            with self._trace.span("wait", "updates", self._progress.steps):
                self.updater.settle()

    def _offer(self, group: str, gradient: Any, partial: int) -> None:
        """Hands the pipeline's gradient to the updater; if stale, that of the step before."""
        version = self._order.version(self._progress.steps) + 1
        if self._order.stale:
            pending = self._progress.pending
            before, pending[group] = pending.get(group), gradient
            if before is None:
                return
            gradient = before
            version = self._progress.steps
            partial += sum(x.nbytes for x in jax.tree.leaves(pending))
        deadline = self._order.deadline(group, version)
        self.updater.offer(group, gradient, version, deadline, partial)

    def _place(self, name: str, arrays: list[Any]) -> Any:
        """Copies a parameter group's parameters to the device for the pipeline.

        Called in the stream's thread, so that no other process may take part.
        """
        group = self._groups[name]
        if self._lent:
            # Views, for a copy of JAX's own would keep updates from writing to the arrays later.
            arrays = [view(x) for x in arrays]
        held = group.device.unflatten(arrays)
        placed = self._shards.place(name, held)
        if placed is None:
            placed = self._engine.place(name, held)
        # What lives in memory stays as it is until it has been used.
        return placed if self._lent and group.storage.in_place else self._engine.wait(placed)

    def _stop_updates(self, error: BaseException) -> None:
        """Stops the pipeline's optimiser updates after an error in the weight stream."""
        if (updater := getattr(self, "updater", None)) is not None:
            updater.fail(error)


def watch(
    trainer: Any, pipeline: Pipeline, commits: Commits | None, progress: Progress
) -> Callable[[], None]:
    """Makes a trainer's pipeline end once the trainer is collected or the interpreter exits.

    Args:
      trainer: of which nothing that threads refer to refers to it.
      pipeline, commits, progress: its own.

    Returns:
      A function that ends the watching, for a trainer that is closed.
    """
    # Threads that are in compiled code when the interpreter ends would abort the process.
    at_exit = functools.partial(_end_at_exit, weakref.ref(trainer))
    atexit.register(at_exit)
    finalizer = weakref.finalize(trainer, _end, pipeline, commits, progress, at_exit, os.getpid())
    finalizer.atexit = False

    def unwatch() -> None:
        atexit.unregister(at_exit)
        finalizer.detach()

    return unwatch


def _end_at_exit(held: "weakref.ref[Any]") -> None:
    """Closes a trainer and its pipeline at the interpreter's exit, without waiting for updates."""
    if (trainer := held()) is not None:
        trainer.__exit__(SystemExit, SystemExit(), None)


def _end(
    pipeline: Pipeline, commits: Commits | None, progress: Progress, at_exit: Any, pid: int
) -> None:
    """Ends the pipeline of a trainer that was garbage-collected without being closed.

    In a thread of its own: the collector may have come from one of those that end.
    """
    if pid != os.getpid():  # a fork has none of the threads
        return
    atexit.unregister(at_exit)

    def end() -> None:
        try:
            if commits is not None:
                commits.join()  # what it commits is not lost
                commits.warn(progress.steps, "dropped without close()")
        finally:
            pipeline.close()

    thread = threading.Thread(target=end, name="offload end")
    if commits is not None:
        commits.ends_in(thread)
    try:
        thread.start()
    except RuntimeError:  # too late for threads
        end()
    warnings.warn(
        "offload.Trainer: one was dropped without close(), and its threads end now; updates under "
        "way are lost, and what was not committed. Use `with offload.Trainer(...) as trainer:`",
        ResourceWarning,
        stacklevel=2,
    )
