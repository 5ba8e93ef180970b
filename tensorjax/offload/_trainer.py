"""Training layer by layer, with parameters and optimiser states that do not fit anywhere."""

import dataclasses
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax.offload import _groups
from tensorjax.offload._homes import StoreHome
from tensorjax.offload._layers import Engine, Layer, check_layers
from tensorjax.offload._optimizer import HostOptimizer
from tensorjax.offload._trace import Trace
from tensorjax.offload._updates import Schedule, Updater, check_schedule
from tensorjax.offload._weights import WeightStream

FORMAT = 1  # of what is kept beside the tensors


@dataclasses.dataclass(frozen=True)
class Step:
    """What a step of training found.

    Attributes:
      number: of steps, this one included.
      loss: mean over the microbatches, before the update.
      norm: of all gradients, if they are clipped; else None.
    """

    number: int
    loss: float
    norm: float | None


class Trainer:
    """Trains a list of layers, of which few need to be on the device at a time.

    The device computes layer after layer, forwards and backwards; parameters are read before they
    are needed, gradients go to the host, and the host updates, with reads and writes under way
    meanwhile. Updates overlap with the backward pass and with the next forward pass, those first
    whose parameters are needed first. The result is that of training in memory, bit for bit: it
    depends neither on where parameters live nor on the schedule (but "one_step_stale").

    Args:
      layers: the model; the last layer returns the loss.
      params: parameters of each group that layers use: a pytree of floating arrays, or a function
        without arguments that JAX can trace and that returns one. A store that has been trained
        with goes on from its committed state; of ``params``, only shapes are then used.
      optimizer: an Optax transformation, applied to each group by itself.
      store: a `TensorStore`, or None to keep all in memory.
      in_memory: groups that live in host memory all the same; they are written to the store when
        it is committed.
      device_bytes: memory of the device for parameters. If None: two layers with a store, else all.
      gradient_bytes: memory of the host for gradients that wait; those beyond wait in the store.
        None keeps all in memory.
      microbatches: parts that a batch is cut into; each layer computes all of them before the next.
      clip: largest norm of all gradients together, or None. Updates then wait for the end of the
        backward pass.
      compute_dtype: of the parameters on the device, such as ``jnp.bfloat16``; those that are
        updated keep their own dtype. None computes with these.
      schedule: "overlap"; "after_backward", which updates between a backward pass and the next
        forward pass; "sequential", which moreover reads, updates and writes by turns (both to
        compare with); or "one_step_stale", WHICH CHANGES RESULTS: a step computes with parameters
        that lack the update of the step before it, and all gradients are kept for a step.
      commit_every: steps between commits of the store; None commits only when told to. A commit
        takes place during the next step, between its forward and its backward pass.
      key: of `jax.random`, for layers that draw; each layer, microbatch and step gets its own.
      engine: what computes; `Engine()` if None.
      lookahead: groups whose optimiser state is read before their turn.
      trace: what gains spans; a new one if None.

    Attributes:
      steps: how many have been done, those before a restart included.
      data: what the last step was given as ``data``, or the committed state had.
      trace: spans of what happened.

    Raises:
      TypeError: layers, parameters or an optimiser of another kind.
      ValueError: names that do not fit, options out of range, a store of another model.

    Example:
      >>> import jax.numpy as jnp
      >>> import optax
      >>> from tensorjax import offload
      >>> def linear(params, x, batch, key):
      ...     return (batch["x"] if x is None else x) @ params[0]
      >>> def loss(params, x, batch, key):
      ...     return jnp.mean((x @ params[0] - batch["y"]) ** 2)
      >>> layers = [offload.Layer(name="a", apply=linear), offload.Layer(name="b", apply=loss)]
      >>> params = {"a": jnp.ones((3, 4)), "b": jnp.ones((4, 1))}
      >>> with offload.Trainer(layers, params, optax.sgd(0.01)) as trainer:
      ...     batch = {"x": jnp.ones((2, 3)), "y": jnp.ones((2, 1))}
      ...     losses = [trainer.step(batch).loss for _ in range(2)]
      >>> losses[0] > losses[1]
      True

    Source: the schedule after HiTrain, DOI 10.7544/issn1000-1239.202550478 (of which only the
    abstract was at hand); layers before microbatches after GreedySnake; the baseline after
    ZeRO-Infinity, arXiv 2104.07857.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        params: _groups.Params,
        optimizer: Any,
        *,
        store: Any = None,
        in_memory: Collection[str] = (),
        device_bytes: int | None = None,
        gradient_bytes: int | None = None,
        microbatches: int = 1,
        clip: float | None = None,
        compute_dtype: Any = None,
        schedule: Schedule = "overlap",
        commit_every: int | None = None,
        key: jax.Array | None = None,
        engine: Engine | None = None,
        lookahead: int = 3,
        trace: Trace | None = None,
    ) -> None:
        self._layers = check_layers(layers, params)
        self._schedule = check_schedule(schedule)
        self._microbatches = _check.integer("microbatches", microbatches, low=1)
        self._clip = _check_clip(clip)
        if commit_every is not None:
            _check.integer("commit_every", commit_every, low=1)
        if store is None and (commit_every is not None or gradient_bytes is not None):
            raise ValueError("commit_every, gradient_bytes: expected a store with them, got none")
        self._commit_every = commit_every
        self._store: Any = store
        self._optimizer = HostOptimizer(optimizer, compute_dtype)
        self._engine = Engine() if engine is None else engine
        self.trace = Trace() if trace is None else trace
        self._home = None if store is None else StoreHome(store, self.trace)
        self._groups = _groups.make_groups(
            params, self._optimizer, store=self._home, in_memory=in_memory
        )
        self._key, self.steps, self.data = key, 0, None
        self._pending: dict[str, Any] = {}  # gradients of the step before, where updates are stale
        self._pending_scale: Any = None
        self._spills = gradient_bytes is not None or schedule == "one_step_stale"
        resumed = store is not None and "trainer" in (store.meta or {})
        if resumed:
            self._resume()
        else:
            if store is not None:
                store.reserve(_groups.specs(self._groups.values(), gradients=self._spills))
            _groups.begin(self._groups, params, self._optimizer)
        lookahead = 0 if schedule == "sequential" else _check.integer("lookahead", lookahead, low=1)
        self._start_threads(device_bytes, gradient_bytes, lookahead)
        self._committing: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self.peak_activations = 0
        if store is not None and not resumed:
            try:
                self.commit()
            except BaseException as error:
                self._failure = error
                self.close()
                raise

    def _start_threads(self, device_bytes: Any, gradient_bytes: Any, lookahead: int) -> None:
        forward = [layer.uses for layer in self._layers]
        self._uses = [*forward, *forward[-2::-1]]
        sizes = {name: group.device.nbytes for name, group in self._groups.items()}
        largest = sorted(sum(sizes[g] for g in uses) for uses in forward)
        if device_bytes is None:
            device_bytes = sum(sizes.values() if self._store is None else largest[-2:])
        _check.integer("device_bytes", device_bytes, low=0)
        if device_bytes < largest[-1]:
            raise ValueError(
                f"device_bytes: expected room for the largest layer, {largest[-1]} bytes, "
                f"got {device_bytes}; cut that layer in two, or compute in half precision"
            )
        self._first = {g: n for n, uses in reversed(list(enumerate(forward))) for g in uses}
        self._stream = WeightStream(
            self._uses,
            sizes,
            capacity=device_bytes,
            ahead=4,
            start=self.steps * len(self._uses),
            version=self._version,
            read=lambda g, deadline, step: self._groups[g].home.read(
                self._groups[g].device, deadline=deadline, step=step
            ),
            place=self._place,
            trace=self.trace,
        )
        self._updater = Updater(
            self._groups,
            self._optimizer,
            spill=self._home,
            gradient_bytes=gradient_bytes,
            lookahead=lookahead,
            staging=None if self._store is None else _staging(self._store),
            start=self._version(self.steps),
            updated=self._stream.updated,
            written=self._stream.written,
            failed=self._stream.fail,
            trace=self.trace,
        )

    def step(self, batch: Any, *, data: Any = None) -> Step:
        """Computes one step; its updates go on in the background when this returns.

        Args:
          batch: pytree of arrays whose first axes are cut into microbatches of equal size.
          data: what a commit shall remember of the position in the data, such as a number; JSON.

        Returns:
          Number, loss and norm.

        Raises:
          RuntimeError: a thread failed, of this step or one before; its cause is the error. A new
            trainer on the same store, opened again, goes on from what was committed.
          ValueError: a batch that cannot be cut.
        """
        self._check_open()
        batches = [self._engine.batch(b) for b in _cut(batch, self._microbatches)]
        try:
            loss, norm = self._step(batches)
        except BaseException as error:
            # Some groups may have been updated, others not: nothing of that is to be committed.
            self._failure = error
            raise
        self.steps, self.data = self.steps + 1, data
        return Step(self.steps, loss, norm)

    def _step(self, batches: list[Any]) -> tuple[float, float | None]:
        base, version = self.steps * len(self._uses), self._version(self.steps) + 1
        inputs = self._forward(base, batches)
        if self._commit_due():
            self._begin_commit()
        loss, squares = self._backward(base, version, batches, inputs)
        norm = None if self._clip is None else float(np.sqrt(np.float32(squares)))
        self._finish(norm)
        return loss, norm

    def _forward(self, base: int, batches: list[Any]) -> list[list[tuple[Any, Any]]]:
        """Inputs of all layers but the first, for each microbatch, and what the layers kept."""
        self._expect(base)
        x: list[Any] = [None] * len(batches)
        inputs = []
        for number, layer in enumerate(self._layers[:-1]):
            params = self._stream.take(base + number)
            with self.trace.span("compute", f"{layer.name} forward", self.steps):
                out = [
                    self._engine.forward(layer, params, x[m], batch, self._keyed(number, m))
                    for m, batch in enumerate(batches)
                ]
                self._engine.wait(out)
            inputs.append([(x[m], kept) for m, (_, kept) in enumerate(out)])
            x = [y for y, _ in out]
            del params, out
            self._stream.done(base + number)
        inputs.append([(y, None) for y in x])
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(inputs))
        self.peak_activations = max(self.peak_activations, held)
        return inputs

    def _backward(
        self, base: int, version: int, batches: list[Any], inputs: list[Any]
    ) -> tuple[float, Any]:
        """Loss and the sum of the squares of all gradients, which go to the updater."""
        last, share = len(self._layers) - 1, 1.0 / len(batches)
        left = {g: sum(g in layer.uses for layer in self._layers) for g in self._groups}
        partial: dict[str, Any] = {}
        dy: list[Any] = [None] * len(batches)
        losses, squares = [], jnp.zeros((), jnp.float32)
        if self._gated():
            self._updater.gate()
        elif self._schedule == "one_step_stale":
            self._updater.release(self._pending_scale)
        for number in range(last, -1, -1):
            layer, position = self._layers[number], base + 2 * last - number
            params = self._stream.take(position)
            sums: Any = None
            with self.trace.span("compute", f"{layer.name} backward", self.steps):
                for m, batch in enumerate(batches):
                    x, kept = inputs[number][m]
                    key = self._keyed(number, m)
                    if number == last:
                        loss, dy[m], sums = self._engine.last(
                            layer, params, x, batch, key, share, sums
                        )
                        losses.append(loss)
                    else:
                        dy[m], sums = self._engine.backward(
                            layer, params, x, batch, key, kept, dy[m], sums
                        )
                    inputs[number][m] = x = kept = None
                self._engine.wait((dy, sums))
            del params
            self._stream.done(position)
            for group, gradient in zip(layer.uses, sums, strict=True):
                whole = self._joined(partial, left, group, self._optimizer.host(gradient))
                if whole is None:
                    continue
                if self._clip is not None:
                    squares = squares + self._optimizer.squares(whole)
                self._offer(group, whole, version)
            del sums, gradient
        return float(sum(float(loss) for loss in losses)), squares

    def _joined(
        self, partial: dict[str, Any], left: dict[str, int], group: str, gradient: Any
    ) -> Any:
        """The gradient of a group once all layers that use it have had their say, or None."""
        if group in partial:
            gradient = self._optimizer.add(partial.pop(group), gradient)
        left[group] -= 1
        if left[group]:
            partial[group] = gradient
            return None
        return gradient

    def _offer(self, group: str, gradient: Any, version: int) -> None:
        if self._schedule == "one_step_stale":
            before, self._pending[group] = self._pending.get(group), gradient
            if before is None:
                return
            gradient = before
            version = self.steps
        self._updater.offer(group, gradient, version, self._deadline(group, version))

    def _finish(self, norm: float | None) -> None:
        scale = None
        if self._clip is not None and norm is not None:
            scale = np.float32(1.0 if norm <= self._clip else self._clip / norm)
        if self._schedule == "one_step_stale":
            self._pending_scale = scale
            return
        if self._gated():
            self._updater.release(scale)
        if self._schedule in ("after_backward", "sequential"):
            with self.trace.span("wait", "updates", self.steps):
                self._updater.settle()

    def flush(self) -> None:
        """Waits until all updates have been computed and written.

        With "one_step_stale", those of the last step are not: the next step makes them.
        """
        self._check_open()
        self._join_commit()
        self._updater.settle()

    def commit(self) -> None:
        """Makes the state after the last step the one that a restart goes on from.

        Raises:
          ValueError: there is no store.
        """
        self._check_open()
        if self._store is None:
            raise ValueError("commit: expected a trainer with a store; give it one")
        self.flush()
        self._commit(self._meta(), dict(self._pending))

    def groups(self) -> Iterator[tuple[str, Any, Any]]:
        """Name, parameters and optimiser state of each group by turns: copies, as NumPy arrays."""
        self.flush()
        for name, group in self._groups.items():
            yield (
                name,
                _groups.get(group.params, group.home, _copy),
                _groups.get(group.state, group.home, _copy),
            )

    def params(self) -> dict[str, Any]:
        """All parameters, copied to the memory of the host."""
        return {name: params for name, params, _ in self.groups()}

    def statistics(self) -> dict[str, Any]:
        """Bytes: the most that parameters on the device, gradients and activations have taken."""
        return {
            "device_peak_bytes": self._stream.peak,
            "gradient_peak_bytes": self._updater.peak_gradient,
            "activation_peak_bytes": self.peak_activations,
            "store": {} if self._store is None else self._store.statistics(),
        }

    def close(self) -> None:
        """Waits for updates under way and ends the threads; the store stays open.

        What has not been committed is lost once the store is closed.
        """
        if self._closed:
            return
        try:
            if self._failure is None:
                self.flush()
        finally:
            self._closed = True
            self._join_commit()
            self._updater.close()
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            self._failure = error
        self.close()

    # Commits: in a thread, between a forward pass and the updates of the backward pass after it.

    def _commit_due(self) -> bool:
        return bool(self._commit_every and self.steps and self.steps % self._commit_every == 0)

    def _begin_commit(self) -> None:
        self._join_commit()
        self._updater.hold_back(True)
        arguments = (self._meta(), dict(self._pending))
        self._committing = threading.Thread(
            target=self._commit_behind, args=arguments, name="offload commit", daemon=True
        )
        self._committing.start()

    def _commit_behind(self, meta: dict[str, Any], pending: dict[str, Any]) -> None:
        try:
            self._updater.settle_written()
            self._commit(meta, pending)
        except BaseException as error:
            self._updater.fail(error)
            self._stream.fail(error)
        finally:
            self._updater.hold_back(False)

    def _join_commit(self) -> None:
        if self._committing is not None:
            self._committing.join()
            self._committing = None

    def _commit(self, meta: dict[str, Any], pending: dict[str, Any]) -> None:
        assert self._home is not None
        with self.trace.span(
            "commit", f"step {meta['trainer']['steps']}", meta["trainer"]["steps"]
        ):
            for group in self._groups.values():
                if group.home is self._home:
                    continue
                for bundle in group.bundles:
                    held = _groups.get(bundle, group.home, lambda x: x)
                    _groups.put(group, bundle, held, self._home)
            for name, gradient in pending.items():
                _groups.put(self._groups[name], self._groups[name].gradient, gradient, self._home)
            self._home.settle()
            self._store.commit(meta)

    def _meta(self) -> dict[str, Any]:
        key = None if self._key is None else np.asarray(jax.random.key_data(self._key)).tolist()
        scale = None if self._pending_scale is None else float(self._pending_scale)
        return {
            "trainer": {
                "format": FORMAT,
                "steps": self.steps,
                "key": key,
                "data": self.data,
                "stale": self._schedule == "one_step_stale",
                "scale": scale,
            }
        }

    def _resume(self) -> None:
        meta = self._store.meta["trainer"]
        if meta["format"] != FORMAT:
            raise ValueError(f"store: expected format {FORMAT}, got {meta['format']}")
        stale = self._schedule == "one_step_stale"
        if meta["stale"] != stale and meta["steps"]:
            kind = "one-step-stale" if meta["stale"] else "exact"
            raise ValueError(
                f"schedule: the store was trained with {kind} updates; go on with them"
            )
        wanted = _groups.specs(self._groups.values(), gradients=False)
        gradients = _groups.specs(self._groups.values(), gradients=True).keys() - wanted.keys()
        held = {n: self._store.spec(n) for n in self._store.names if n not in gradients}
        if faults := list(_groups.different(held, wanted)):
            raise ValueError(
                "store: expected one of this model and optimiser, but "
                + "; ".join(faults[:5])
                + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
            )
        if self._spills:
            every = _groups.specs(self._groups.values(), gradients=True)
            missing = {n: every[n] for n in gradients - set(self._store.names)}
            if missing:
                self._store.reserve(missing)
        self._recall(meta)

    def _recall(self, meta: dict[str, Any]) -> None:
        """Takes over what a commit remembered, and reads what lives in memory."""
        assert self._home is not None
        self.steps, self.data = meta["steps"], meta["data"]
        given = None if self._key is None else np.asarray(jax.random.key_data(self._key)).tolist()
        if meta["key"] != given:
            raise ValueError(
                f"key: the store was trained with key data {meta['key']}, got {given}; "
                "give the same key"
            )
        for group in self._groups.values():
            if group.home is not self._home:
                for bundle in group.bundles:
                    _groups.put(group, bundle, _groups.get(bundle, self._home, self._owned))
        if meta["stale"] and self.steps:
            self._pending_scale = None if meta["scale"] is None else np.float32(meta["scale"])
            self._pending = {
                name: _groups.get(group.gradient, self._home, self._owned)
                for name, group in self._groups.items()
            }

    # Small things.

    def _version(self, step: int) -> int:
        """Updates that the parameters have had which a step computes with."""
        return max(step - 1, 0) if self._schedule == "one_step_stale" else step

    def _gated(self) -> bool:
        if self._schedule == "one_step_stale":
            return False
        return self._clip is not None or self._schedule != "overlap"

    def _deadline(self, group: str, version: int) -> float:
        """Position at which the parameters of a version are needed first."""
        step = version + 1 if self._schedule == "one_step_stale" else version
        return float(step * len(self._uses) + self._first[group])

    def _expect(self, base: int) -> None:
        """Tells the updater in which order the gradients of this step will come."""
        version = self._version(self.steps) + 1
        if self._schedule == "one_step_stale":
            if not self._pending:
                return
            version = self.steps
        backward = [g for layer in reversed(self._layers) for g in layer.uses]
        order = list(dict.fromkeys(reversed(backward)))[::-1]
        coming = {g: (version, self._deadline(g, version)) for g in order}
        self._updater.expect(coming, gated=self._gated())

    def _keyed(self, layer: int, microbatch: int) -> Any:
        if self._key is None:
            return None
        key = jax.random.fold_in(self._key, self.steps)
        return jax.random.fold_in(jax.random.fold_in(key, layer), microbatch)

    def _place(self, name: str, arrays: list[Any]) -> Any:
        bundle = self._groups[name].device
        return self._engine.wait(self._engine.place(name, bundle.unflatten(arrays)))

    def _owned(self, x: Any) -> jax.Array:
        return jax.block_until_ready(jnp.array(x, copy=True, device=self._optimizer.device))

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the trainer is closed; make a new one")
        if self._failure is not None:
            raise RuntimeError(
                "a step failed half-way; open the store again and make a new trainer, which goes "
                "on from what was committed"
            ) from self._failure


def _staging(store: Any) -> int:
    """Bytes that reads of a store surely have, between leases that have cut its memory up."""
    return store.statistics().staging * 5 // 8


def _check_clip(clip: float | None) -> float | None:
    if clip is not None and not 0 < clip < float("inf"):
        raise ValueError(f"clip: expected a positive norm or None, got {clip!r}")
    return clip


def _cut(batch: Any, parts: int) -> list[Any]:
    """Microbatches: equal parts of the first axis of every array."""
    leaves = jax.tree.leaves(batch)
    sizes = {np.shape(x)[:1] for x in leaves}
    if len(sizes) != 1 or sizes == {()} or next(iter(sizes))[0] % parts:
        raise ValueError(
            f"batch: expected arrays whose first axes agree and divide by {parts} microbatches, "
            f"got shapes {[np.shape(x) for x in leaves]}"
        )
    size = next(iter(sizes))[0] // parts
    return [jax.tree.map(lambda x, m=m: x[m * size : (m + 1) * size], batch) for m in range(parts)]


def _copy(x: Any) -> np.ndarray:
    return np.array(x, copy=True)
