"""Commits of a training to its store, in the background, and resuming from them."""

import logging
import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from tensorjax.offload._errors import CapacityError, MismatchError, StoreError, listed
from tensorjax.offload._processes import Processes
from tensorjax.offload._store.store import TensorStore
from tensorjax.offload._threads import Settings
from tensorjax.offload._training import fingerprint
from tensorjax.offload._training.passes.layers import Layer
from tensorjax.offload._training.storage.arrays import owned
from tensorjax.offload._training.storage.storage import StoreStorage
from tensorjax.offload._training.trace import Trace
from tensorjax.offload._training.updates import parameter_groups
from tensorjax.offload._training.updates.parameter_groups import Group
from tensorjax.offload._training.updates.updater import Updater

_LOG = logging.getLogger("tensorjax.offload")
FORMAT = 3  # version of the metadata that is kept beside the tensors

# The trainer that claimed each store last.
_TRAINERS: "weakref.WeakKeyDictionary[TensorStore, Any]" = weakref.WeakKeyDictionary()
# The thread that ends a trainer which was dropped, by its store.
_ENDING: "weakref.WeakKeyDictionary[TensorStore, threading.Thread]" = weakref.WeakKeyDictionary()


def take(store: Any, trainer: Any) -> None:
    """Reserves a tensor store for one trainer's commits; raises if another trainer has it."""
    if store is None:
        return
    if not isinstance(store, TensorStore):
        raise TypeError(
            f"store: expected a TensorStore or None, got {type(store).__name__}; open one: "
            "TensorStore(path, capacity)"
        )
    if store.closed:
        raise StoreError("store: expected an open store, got one that was closed; open it again")
    if in_use(store) is not None:
        raise StoreError(
            "store: another trainer goes on in it; close that one, or open the store again"
        )
    wait_for_ending(store)  # what it still writes must not follow what this one does
    _TRAINERS[store] = weakref.ref(trainer)


def in_use(store: TensorStore) -> Any:
    """Returns the open trainer whose commits a tensor store is reserved for, or None."""
    other = _TRAINERS[store]() if store in _TRAINERS else None
    return None if other is None or other.closed else other


def wait_for_ending(store: TensorStore) -> None:
    """Waits until the trainer dropped last, of those with commits to a store, has ended."""
    if (ending := _ENDING.get(store)) is not None:
        ending.join()
        if _ENDING.get(store) is ending:
            _ENDING.pop(store, None)


@dataclass
class Progress:
    """Training progress that a commit saves: steps, data position, gradients of stale updates.

    Attributes:
      steps: that have been done.
      data: what the last one was given as its position in the data.
      pending: gradients of the last step, by group, where updates are stale.
      scale: what these are multiplied by, or None.
    """

    steps: int = 0
    data: Any = None
    pending: dict[str, Any] = field(default_factory=dict)
    scale: Any = None

    def meta(self, model: Any, key: jax.Array | None, stale: bool) -> dict[str, Any]:
        """Returns the metadata of a training's commit: progress, model and random key, as JSON."""
        return {
            "trainer": {
                "format": FORMAT,
                "model": model,
                "steps": self.steps,
                "key": _numbers(key),
                "data": self.data,
                "stale": stale,
                "scale": None if self.scale is None else float(self.scale),
            }
        }


class Commits:
    """Committer of a trainer's state to its store, at once or in a background thread.

    Of several processes all commit one step, and together: their stores are opened with it all, or
    with the one before all.

    Args:
      storage: the same, as a storage of groups.
      groups: by name; those that live elsewhere are written to the store first.
      updater: is held back while a commit goes on beside the computation.
      processes: that commit together.
      steps: that the store has.
      failed: called with what ended a commit beside the computation.
    """

    def __init__(
        self,
        store: Any,
        storage: StoreStorage,
        groups: Mapping[str, Group],
        *,
        updater: Updater,
        processes: Processes,
        steps: int,
        failed: Callable[[BaseException], None],
        trace: Trace,
    ) -> None:
        self._store, self._storage, self._groups, self.steps = store, storage, groups, steps
        self._updater, self._processes = updater, processes
        self._failed, self._trace = failed, trace
        self._thread: threading.Thread | None = None
        self._settings = Settings()

    def begin(self, meta: dict[str, Any], pending: Mapping[str, Any], version: int) -> None:
        """Starts a thread that commits all groups as of one step; later updates wait for it.

        Called before any gradient for a later version is offered.
        """
        self.join()
        self._updater.hold_back(version)
        thread = threading.Thread(
            target=self._behind, args=(meta, dict(pending), version), name="offload commit",
            daemon=True,
        )  # fmt: skip
        try:
            thread.start()
        except BaseException:
            self._updater.hold_back(math.inf)
            raise
        self._thread = thread

    def join(self) -> None:
        """Waits until the commit that runs in the background has ended."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def now(self, meta: dict[str, Any], pending: Mapping[str, Any]) -> None:
        """Commits the current state of a training, all of whose updates have been written."""
        steps = meta["trainer"]["steps"]
        with self._trace.span("commit", f"step {steps}", max(0, steps - 1)):
            for group in self._groups.values():
                if group.storage is self._storage:
                    continue
                for packing in group.packings:
                    held = parameter_groups.get(packing, group.storage, lambda x: x)
                    parameter_groups.put(group, packing, held, self._storage)
            for name, gradient in pending.items():
                parameter_groups.put(
                    self._groups[name], self._groups[name].gradient, gradient, self._storage
                )
            self._storage.settle()
            if self._processes.count == 1:
                self._store.commit(meta)
            else:
                what = f"commit of step {steps}"
                self._store.commit(meta, barrier=lambda: self._processes.wait(what))
            self.steps = steps

    def ends_in(self, thread: threading.Thread) -> None:
        """Makes commits by the store's next trainer wait for a thread that closes this one."""
        _ENDING[self._store] = thread

    def warn(self, steps: int, ended: str = "closed") -> None:
        """Logs a warning if a training, which ended so, has made steps that are not committed."""
        if self.steps < steps:
            _LOG.warning(
                "%s after step %d, the store has step %d: call commit() before close(), or give "
                "commit_every, to keep what came since", ended, steps, self.steps,
            )  # fmt: skip

    def _behind(self, meta: dict[str, Any], pending: Mapping[str, Any], version: int) -> None:
        try:
            with self._settings.entered():
                self._updater.settle_at(version)
                self.now(meta, pending)
        except BaseException as error:
            self._updater.fail(error)
            self._failed(error)
        finally:
            self._updater.hold_back(math.inf)


def resume_or_reserve(
    store: Any,
    storage: StoreStorage,
    layers: Sequence[Layer],
    groups: Mapping[str, Group],
    *,
    processes: Processes,
    key: jax.Array | None,
    stale: bool,
    gradients: bool,
) -> Progress | None:
    """Resumes a training from a store's last commit, or reserves its tensors in a new one.

    Args:
      store: of this process; what was written to it since its last commit is forgotten.
      storage, layers, groups, key, stale, gradients: as for `resume`.
      processes: that train together.

    Returns:
      Progress of the training that goes on; None for a new one.

    Raises:
      MismatchError, ValueError: as of `resume`, `same_process` and `same_step`.
      CapacityError: the store is too small.
    """
    same_process(processes, store)
    store.revert()  # another trainer may have gone on in it, without a commit
    found = None
    if "trainer" in (store.meta or {}):
        found = resume(store, storage, layers, groups, key=key, stale=stale, gradients=gradients)
    else:
        _check_new(store)
        try:
            store.reserve(parameter_groups.specs(groups.values(), gradients=gradients))
        except CapacityError as error:
            error.add_note(
                "offload.capacity(offload.tensors(params, optimizer, compute_dtype=, "
                f"gradients={gradients})) is what this training takes"
            )
            raise
    same_step(processes, None if found is None else found.steps)
    return found


def _check_new(store: Any) -> None:
    """Raises MismatchError unless a store is empty, so that a new training can commit to it.

    What was reserved by attempts that ended before their first commit is given up.
    """
    if store.meta is not None or store.written:
        raise MismatchError(
            f"store: expected an empty one, or one of a trainer, got meta {store.meta!r} and the "
            f"tensors {listed(store.written)}; give the training a folder of its own"
        )
    store.forget()


def resume(
    store: Any,
    storage: StoreStorage,
    layers: Sequence[Layer],
    groups: Mapping[str, Group],
    *,
    key: jax.Array | None,
    stale: bool,
    gradients: bool,
) -> Progress:
    """Resumes a training from the last commit in its store; raises an error if it does not fit.

    Groups that are kept in memory are read.

    Args:
      store: with a committed state.
      storage: the same, as a storage of groups.
      stale: whether its updates are.
      gradients: whether gradients may wait in the store.
    """
    meta = store.meta["trainer"]
    if meta["format"] != FORMAT:
        raise MismatchError(
            f"store: expected a training of format {FORMAT}, got {meta['format']}, of another "
            "version of tensorjax; go on with that one"
        )
    if meta["stale"] != stale and meta["steps"]:
        kind = "one-step-stale" if meta["stale"] else "exact"
        raise ValueError(f"schedule: the store was trained with {kind} updates; go on with them")
    fingerprint.check(store, meta["model"], layers, groups, gradients=gradients)
    if meta["key"] != _numbers(key):
        raise ValueError(
            f"key: the store was trained with the key {meta['key']}, got {_numbers(key)}; "
            "give the same key"
        )
    for group in groups.values():
        if group.storage is not storage:
            for packing in group.packings:
                parameter_groups.put(group, packing, parameter_groups.get(packing, storage, owned))
    found = Progress(meta["steps"], meta["data"])
    if meta["stale"] and found.steps:
        found.scale = None if meta["scale"] is None else np.float64(meta["scale"])
        found.pending = {
            name: parameter_groups.get(group.gradient, storage, owned)
            for name, group in groups.items()
        }
    return found


def same_process(processes: Processes, store: Any) -> None:
    """Raises ValueError if the store whose commits to resume from is another process's."""
    if store.process != (processes.number, processes.count):
        number, count = store.process
        raise ValueError(
            f"store: expected that of process {processes.number} of {processes.count}, got that of "
            f"process {number} of {count}; open it after jax.distributed.initialize, or give it "
            "process=(number, count)"
        )


def same_step(processes: Processes, steps: int | None) -> None:
    """Raises ValueError unless the commits in the stores of all processes are of the same step."""
    found = processes.exchange("opening the stores", steps)
    if any(other != found[0] for other in found):
        said = ("new" if other is None else f"at step {other}" for other in found)
        numbered = ", ".join(f"of process {n} {text}" for n, text in enumerate(said))
        raise ValueError(
            f"store: expected the stores of all processes at one step, got that {numbered}; bring "
            "the files of one commit into the folder, or remove all of them and begin anew"
        )


def _numbers(key: jax.Array | None) -> Any:
    """Converts a random key to JSON, for the metadata of a commit: implementation and data."""
    if key is None:
        return None
    return [str(jax.random.key_impl(key)), np.asarray(jax.random.key_data(key)).tolist()]
