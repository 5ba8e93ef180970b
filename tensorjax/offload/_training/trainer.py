"""Trainer that computes layer by layer, with parameters and optimiser states offloaded."""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Self

import jax
import numpy as np

from tensorjax._typing import DTypeLike, Optimizer, PyTree
from tensorjax.offload._processes import Processes
from tensorjax.offload._store.disk.index import plain
from tensorjax.offload._store.store import TensorStore
from tensorjax.offload._training import commits as _commits
from tensorjax.offload._training import fingerprint
from tensorjax.offload._training import options as _options
from tensorjax.offload._training.commits import Commits, Progress
from tensorjax.offload._training.options import Overflow, Schedule
from tensorjax.offload._training.passes.engine import Engine
from tensorjax.offload._training.passes.layers import Layer, check_layers, cut
from tensorjax.offload._training.passes.weight_stream import room
from tensorjax.offload._training.pipeline import Order, Pipeline, watch
from tensorjax.offload._training.storage.process_shards import Shards
from tensorjax.offload._training.storage.storage import StoreStorage
from tensorjax.offload._training.trace import Trace
from tensorjax.offload._training.updates import parameter_groups, read_budget
from tensorjax.offload._training.updates.cross_group_check import check_separate
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer


@dataclasses.dataclass(frozen=True)
class Step:
    """Result of a training step: number, loss and gradient norm.

    Attributes:
      number: of steps, this one included.
      loss: mean over the microbatches, before the update.
      norm: of all gradients, if they are clipped; else None.

    Example:
      >>> from tensorjax import offload
      >>> offload.Step(number=1, loss=9.0, norm=None).loss
      9.0
    """

    number: int
    loss: float
    norm: float | None


class Trainer:
    """Trainer of a model given as a list of layers, few of which are on the device at a time.

    The device computes layer after layer, forwards and backwards; parameters are read before they
    are needed, gradients go to the host, and the host updates, with reads and writes under way
    meanwhile. Updates overlap with the backward pass and with the next forward pass, those first
    whose parameters are needed first. The result is that of training in memory, bit for bit: it
    depends neither on where parameters live nor on the schedule (but "one_step_stale").

    Several processes (`jax.distributed`) train one model together, over a mesh of the devices of
    all: each makes the same trainer and the same calls. A process keeps, updates and commits only
    what its own devices hold (`Engine` has the shardings), in a store with files of its own; all
    commit together. So THE OPTIMISER SEES A PART of every array: what is computed entry by entry
    (SGD, Adam, decay) is as ever, but one that looks across an array (Adafactor, Muon, LAMB,
    clipping by the norm of an array) takes the part for the whole, AND GIVES OTHER RESULTS.

    A trainer ends its threads when it is closed; one that is dropped ends them too, with a
    ResourceWarning. In them JAX's settings hold that a ``with`` sets where the trainer is made,
    such as ``with jax.enable_x64(True):``, but for the default device and transfer guards.

    Args:
      layers: the model; the last layer returns the loss.
      params: parameters of each group that layers use: a pytree of floating arrays, or a function
        without arguments that JAX can trace and that returns one. A store that has been trained
        with goes on from its committed state; of ``params``, only shapes are then used.
      optimizer: an Optax transformation, APPLIED TO EACH GROUP BY ITSELF: what looks at all of them
        at once, such as clipping by their norm (here ``clip``) or a step size found for all, would
        give other results, and is refused where a trial on small arrays shows it. Labels and
        masks that are functions of the parameters find groups by name, as in a mapping of all: so
        some can be kept as they are.
      store: a `TensorStore`, or None to keep all in memory. A trainer begins with what is committed
        there; what was written since is forgotten.
      in_memory: groups that live in host memory all the same, where they are updated in place; they
        are written to the store when it is committed.
      device_bytes: memory of the device for parameters. If None: two layers with a store, else all.
      gradient_bytes: memory of the host for gradients that wait; those beyond wait in the store,
        and results on their way to storage, with spare memory, take no more than the largest
        group's. None keeps all in memory, results of twice that size, as many updated parameters
        for the device, and spare states: of groups of one shape two, of any other one.
      gradient_overflow: "store", or "wait": instead of being written and read again, the next
        gradient waits until an update has made room, and the backward pass with it. It saves a disk
        that is the slowest part, and the room of two gradients there; not with clipping.
      microbatches: parts that a batch is cut into; each layer computes all of them before the next.
        Their gradients are summed in float32 at least, then wait in the dtype of the parameters.
      clip: largest norm of all gradients together, or None. Updates then wait for the end of the
        backward pass.
      compute_dtype: of the parameters on the device, such as ``jnp.bfloat16``; those that are
        updated keep their own dtype. None computes with these.
      schedule: "overlap"; or "one_step_stale", WHICH CHANGES RESULTS: a step computes with
        parameters that lack the update of the step before it, and all gradients are kept for a
        step. To compare with: "after_backward" updates between a backward pass and the next forward
        pass; "pipelined" moreover reads no state before, as DeepSpeed does; "sequential" moreover
        reads, updates and writes one after the other.
      commit_every: steps between commits of the store; None commits only when told to. A commit
        takes place during the next step, once its loss is known to be finite; so the last step
        before `close` needs a `commit` of its own.
      key: of `jax.random`, for layers that draw; each layer, microbatch and step gets its own.
      engine: what computes; `Engine()` if None.
      lookahead: how many optimiser states, of the largest group's size, may be read before their
        turn; the store's staging memory bounds it too.
      trace: what gains spans; a new one if None.

    Attributes:
      trace: spans of what happened.

    Raises:
      TypeError: layers, parameters, an optimiser or a store of another kind.
      ValueError: names that do not fit, options out of range, parameters that are not finite, an
        optimiser that looks at several groups at once, a store that was trained with another
        schedule or key.
      MismatchError: a store of another model or optimiser, the difference named.
      StoreError: the store is closed, or another trainer's that is not.
      CapacityError: the store's staging memory is too small for the state of one group.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from tensorjax import offload
      >>> def loss(params, x, batch, key):
      ...     return jnp.mean((batch @ params[0]) ** 2)
      >>> layers = [offload.Layer(name="a", apply=loss)]
      >>> with offload.Trainer(layers, {"a": jnp.ones((3, 4))}, optax.sgd(0.1)) as trainer:
      ...     step = trainer.step(jnp.ones((2, 3)))
      >>> step.number, step.loss
      (1, 9.0)

    Source: the schedule after HiTrain, DOI 10.7544/issn1000-1239.202550478 (of which we know
    only the abstract); layers before microbatches after GreedySnake; the baseline after
    ZeRO-Infinity, arXiv 2104.07857.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        params: parameter_groups.Params,
        optimizer: Optimizer,
        *,
        store: TensorStore | None = None,
        in_memory: Collection[str] = (),
        device_bytes: int | None = None,
        gradient_bytes: int | None = None,
        gradient_overflow: Overflow = "store",
        microbatches: int = 1,
        clip: float | None = None,
        compute_dtype: DTypeLike | None = None,
        schedule: Schedule = "overlap",
        commit_every: int | None = None,
        key: jax.Array | None = None,
        engine: Engine | None = None,
        lookahead: int = 4,
        trace: Trace | None = None,
    ) -> None:
        self._layers = check_layers(layers, params)
        self._options = _options.checked(
            store=store, in_memory=in_memory, gradient_bytes=gradient_bytes,
            gradient_overflow=gradient_overflow, microbatches=microbatches, clip=clip,
            schedule=schedule, commit_every=commit_every, lookahead=lookahead, key=key,
            engine=engine, trace=trace,
        )  # fmt: skip
        self._closed = True  # until all of it has been made: `close` then has nothing to do
        self._turn = threading.Lock()
        _commits.take(store, self)
        self._store: Any = store
        self._optimizer = HostOptimizer(optimizer, compute_dtype)
        self._engine = Engine() if engine is None else engine
        where = self._engine.device  # as it is here: threads may have another default
        self._key = key if key is None or self._engine.shardings else jax.device_put(key, where)
        self._order = Order(self._layers, schedule, clip=clip is not None)
        self._processes = Processes()
        self.trace = Trace() if trace is None else trace
        self._storage = None if store is None else StoreStorage(store, self.trace)
        self._make_groups(parameter_groups.shapes(params), optimizer)
        sizes = {name: g.device.nbytes for name, g in self._groups.items()}
        on_device = room(device_bytes, self._order.forward, sizes, everything=store is None)
        resumed = self._begin(params)
        self._start(on_device)
        self._failure: BaseException | None = None
        self._closed = False
        self._unwatch = watch(self, self._pipeline, self._commits, self._progress)
        if store is not None and not resumed:
            self._commit_initial_state()

    def _make_groups(self, shapes: dict[str, Any], optimizer: Optimizer) -> None:
        """Makes the groups of a new `Trainer`; refuses an optimiser that looks at several."""
        self._shards = Shards(shapes, self._engine.shardings)
        self._groups = parameter_groups.make_groups(
            shapes,
            self._optimizer,
            store=self._storage,
            in_memory=self._options.in_memory,
            shards=self._shards,
            lent=self._engine.lends,
        )
        leaves = (leaf for group in self._groups.values() for leaf in group.device.leaves)
        self._wide = any(leaf.dtype.itemsize == 8 for leaf in leaves)
        self._model = fingerprint.describe(self._layers, self._groups)
        kinds = {name: g.optimizer.program for name, g in self._groups.items()}
        check_separate(optimizer, shapes, kinds)

    def _commit_initial_state(self) -> None:
        """Commits the state of a new `Trainer` before its first step; on an error closes it."""
        try:
            self.commit()
        except BaseException as error:
            self._failure = error
            self.close()
            raise

    def _begin(self, params: parameter_groups.Params) -> bool:
        """Resumes a `Trainer` from its store (returns True) or writes the initial state (False)."""
        found = None
        self._shares: read_budget.Shares | None = None
        if self._store is not None and self._storage is not None:
            found = _commits.resume_or_reserve(
                self._store, self._storage, self._layers, self._groups, processes=self._processes,
                key=self._key, stale=self._order.stale,
                gradients=self._options.spills or self._order.stale,
            )  # fmt: skip
            # What would fail later does so before anything is written.
            self._shares = read_budget.shared(
                self._store, self._storage, self._groups.values(), spills=self._options.spills
            )
            self._storage.together = self._shares.tight
        self._progress = Progress() if found is None else found
        if found is None:
            parameter_groups.begin(self._groups, params, self._shards)
        return found is not None

    def _start(self, device_bytes: int) -> None:
        """Starts a trainer's threads for training steps and, with a store, for commits."""
        self._pipeline = Pipeline(
            self._layers, self._groups, self._options, self._order, self._progress,
            optimizer=self._optimizer, engine=self._engine, shards=self._shards,
            processes=self._processes, storage=self._storage, shares=self._shares,
            device_bytes=device_bytes, key=self._key, trace=self.trace,
        )  # fmt: skip
        self._commits = None
        if self._storage is not None:
            self._commits = Commits(
                self._store, self._storage, self._groups, updater=self._pipeline.updater,
                processes=self._processes, steps=self.steps, failed=self._pipeline.fail,
                trace=self.trace,
            )  # fmt: skip

    @property
    def steps(self) -> int:
        """Number of steps that a trainer has made, including those before a restart."""
        return self._progress.steps

    @property
    def closed(self) -> bool:
        """Whether a trainer was closed, so that no further step can be made."""
        return self._closed

    @property
    def data(self) -> Any:
        """Position in the training data that was given to the last step or restored by a resume."""
        return plain("data", self._progress.data)

    def step(self, batch: PyTree, *, data: Any = None) -> Step:
        """Trains one step on a batch; returns loss and norm while updates go on in the background.

        Args:
          batch: pytree of arrays whose first axes are cut into microbatches of equal size.
          data: what a commit shall remember of the position in the data, such as a number; JSON.

        Returns:
          Number, loss and norm.

        Raises:
          RuntimeError: a thread failed, of this step or one before, its cause is the error, such as
            a FloatingPointError if an update makes parameters that are NaN or infinite; or another
            thread is in a step; or parameters have 64 bits, and JAX has 32 in this thread.
          FloatingPointError: the loss or a gradient is NaN or infinite. No such gradient is
            applied, and nothing of the step is committed.
          ValueError: a batch that cannot be cut.
          TypeError: a batch of something else than arrays; ``data`` that JSON cannot hold.
          Exception: of a layer, with a note which one.

          After an error of the forward pass, or of the loss, the trainer is as it was before the
          step, and may go on with another batch. After a later one, parameters may be of two steps:
          a new trainer on the store, opened again, goes on from what was committed.
        """
        with self._alone("step: another thread is in one; a trainer makes one at a time"):
            return self._one_step(batch, data)

    def evaluate(self, batch: PyTree) -> float:
        """Computes a `Trainer`'s loss of a batch by a forward pass, without training.

        Layers get no keys, so dropout is off, and parameters come as they do in a step. What was
        read for the next step and has no room beside them is read again.

        Args:
          batch: as for `step`; cut into as many microbatches.

        Returns:
          The mean over the microbatches, finite or not. Of parameters that the next step would
          compute with: with "one_step_stale", these lack the last update.

        Raises:
          RuntimeError, ValueError, TypeError, Exception: as of `step`; the trainer may go on.
        """
        with self._alone("evaluate: another thread is in a step, or evaluates"):
            return self._pipeline.evaluate(self._microbatches(batch))

    @contextlib.contextmanager
    def _alone(self, otherwise: str) -> Iterator[None]:
        """Context manager that lets one thread at a time use a trainer; others get RuntimeError."""
        self._check_open()
        if self._wide and jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
            raise RuntimeError(
                "the trainer computes with parameters of 64 bits, and JAX has 32 in this thread: "
                "call it within jax.enable_x64(True), as it was made, or set JAX_ENABLE_X64=1"
            )
        if not self._turn.acquire(blocking=False):
            raise RuntimeError(otherwise)
        try:
            yield
        finally:
            self._turn.release()

    def _microbatches(self, batch: Any) -> list[Any]:
        return [self._engine.batch(b) for b in cut(batch, self._options.microbatches)]

    def _one_step(self, batch: Any, data: Any) -> Step:
        batches = self._microbatches(batch)
        data = plain("data", data)  # as it is now: it is committed later
        self._begun = False
        try:
            loss, norm = self._pipeline.step(batches, checked=self._begin_updates)
            self._progress.steps, self._progress.data = self.steps + 1, data
            return Step(self.steps, loss, norm)
        except Exception as error:
            if self._begun or self._pipeline.failed:
                # Some groups may have been updated, others not: none of that is to be committed.
                self._failure = error
            else:
                self._pipeline.rewind()
            raise
        except BaseException as error:
            self._failure = error
            raise

    def _begin_updates(self) -> None:
        """Starts a `Trainer`'s commit if one is due, once a step's loss is known to be finite.

        What the step before has left, which gave that loss, is committed if that is due.
        """
        self._begun = True
        every, steps = self._options.commit_every, self.steps
        if self._commits is not None and every and steps and steps % every == 0:
            version = self._order.version(self.steps)
            self._commits.begin(self._meta(), self._progress.pending, version)

    def flush(self) -> None:
        """Waits until all optimiser updates of a `Trainer` have been computed and written.

        With "one_step_stale", those of the last step are not: the next step makes them.
        """
        self._check_open()
        if self._commits is not None:
            self._commits.join()
        self._pipeline.updater.settle()

    def commit(self) -> None:
        """Commits the state of a `Trainer` to its store, so that a restart resumes from it.

        What updates have made of the parameters is finite. Commits that ``commit_every`` makes wait
        for the next loss, so that it is finite too; this one does not look.

        Raises:
          ValueError: there is no store.
        """
        self._check_open()
        if self._commits is None:
            raise ValueError(
                "commit: expected a trainer with a store, got none; give Trainer store="
            )
        self.flush()
        self._commits.now(self._meta(), self._progress.pending)

    def groups(self) -> Iterator[tuple[str, Any, Any]]:
        """Yields name, parameters and optimiser state of each parameter group, as NumPy copies.

        Of several processes, each gets its own part.

        Raises:
          RuntimeError: a step was made meanwhile, or the trainer closed.
        """
        self.flush()
        steps = self.steps
        for name, group in self._groups.items():
            self._check_open()
            if self.steps != steps:
                raise RuntimeError(
                    f"groups: expected no step meanwhile, got one after step {steps}: groups would "
                    "be of different steps; take all of them first, or begin again"
                )
            params, state = (
                parameter_groups.get(tree, group.storage, functools.partial(np.array, copy=True))
                for tree in (group.params, group.state)
            )
            yield name, params, state

    def params(self) -> dict[str, Any]:
        """Returns all trained parameters as whole NumPy arrays on the host.

        Several processes have to call this together, and each gets them.
        """
        return {name: self._shards.whole(name, params) for name, params, _ in self.groups()}

    def statistics(self) -> dict[str, Any]:
        """Returns a trainer's peak bytes of each memory, and the statistics of its store.

        Parameters on the device; gradients that wait in memory; results of updates on their way
        to storage; these two together, with gradients that the host still adds to ("host"; those
        on their way from an accelerator, of two layers at most, are not counted); updated
        parameters that are kept until the device has room for them ("handed"); inputs of layers
        that the backward pass needs ("activation"). Besides there are the store's staging memory,
        and what programs take for themselves.
        """
        store = {} if self._store is None else self._store.statistics()
        return {**self._pipeline.statistics(), "store": store}

    def close(self) -> None:
        """Closes a trainer: waits for updates and ends its threads; the store stays open.

        What has not been committed is lost once the store is closed; steps that are so are logged
        as a warning, also where an error or the interpreter's exit closes the trainer.
        """
        if self._closed:
            return
        try:
            if self._failure is None:
                self.flush()
        finally:
            self._closed = True
            self._unwatch()
            try:
                if self._commits is not None:
                    self._commits.join()
                    self._commits.warn(self.steps)
            finally:
                self._pipeline.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"step {self.steps}"
        return f"Trainer({len(self._layers)} layers, {len(self._groups)} groups, {state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            self._failure = error
        self.close()

    def _meta(self) -> dict[str, Any]:
        return self._progress.meta(self._model, self._key, self._order.stale)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the trainer is closed; make a new one")
        if self._failure is not None:
            raise RuntimeError(
                "a step failed half-way; open the store again and make a new trainer, which goes "
                "on from what was committed"
            ) from self._failure
