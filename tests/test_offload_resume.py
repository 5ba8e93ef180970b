"""The committed state is the checkpoint: what goes on from it, and what others can read of it."""

import contextlib
import gc
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("xxhash", reason="the store has an extra of its own")

from tensorjax import offload
from tests import offload_cases as cases

OPTIONS: dict[str, Any] = {"clip": 0.5, "microbatches": 2}


def trainer(store: Any, **options: Any) -> offload.Trainer:
    optimizer = options.pop("optimizer", cases.optimizer())
    return offload.Trainer(
        cases.layers(), cases.params(), optimizer, store=store, **{**OPTIONS, **options}
    )


@pytest.mark.parametrize("schedule", ["overlap", "one_step_stale"])
def test_a_training_goes_on_from_what_was_committed(tmp_path: Path, schedule: Any) -> None:
    options = {"schedule": schedule, "key": jax.random.key(2)}
    losses, params = cases.train(8, **OPTIONS, **options)
    with cases.store(tmp_path) as store, trainer(store, **options) as first:
        for number in range(4):
            first.step(cases.batch(number), data={"next": number + 1})
        first.commit()
        first.step(cases.batch(4))  # lost
    with (
        cases.store(tmp_path) as store,
        trainer(store, **options, in_memory=("block2",), gradient_bytes=0) as second,
    ):
        assert second.steps == 4
        assert second.data == {"next": 4}
        again = [second.step(cases.batch(number)).loss for number in range(4, 8)]
        got = second.params()
    assert again == losses[4:]
    assert cases.equal(got, params)


@pytest.mark.parametrize(
    "options",
    [
        {"clip": None},
        {"clip": 0.5},
        pytest.param({"gradient_bytes": 0}, marks=pytest.mark.slow),
        pytest.param({"in_memory": ("head",)}, marks=pytest.mark.slow),
        pytest.param({"schedule": "one_step_stale"}, marks=pytest.mark.slow),
    ],
    ids=lambda options: " ".join(options),
)
def test_a_commit_beside_the_computation_is_of_one_step(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Also of groups that only the last layer uses, whose updates are the last to be made."""
    layers, params = cases.layers(head=True), cases.params(head=True)
    counts: list[tuple[int, set[int]]] = []

    def opened(store: Any, **more: Any) -> offload.Trainer:
        return offload.Trainer(layers, params, optax.adam(1e-3), store=store, **options, **more)

    def look(meta: Any, **more: Any) -> None:
        commit(meta, **more)
        copy = tmp_path / f"copy{len(counts)}"  # what a kill would leave
        shutil.copytree(tmp_path / "store", copy)
        with cases.store(copy) as left, opened(left) as later:
            found = {int(jax.tree.leaves(state)[0]) for _, _, state in later.groups()}
            counts.append((later.steps, found))

    with cases.store(tmp_path / "store") as store, opened(store, commit_every=1) as trained:
        commit, store.commit = store.commit, look  # type: ignore[method-assign]
        for number in range(6):
            trained.step(cases.batch(number))
        trained.flush()
    stale = options.get("schedule") == "one_step_stale"
    assert counts == [(n, {n - 1 if stale else n}) for n in range(1, 6)]


def test_a_store_of_another_training_is_refused(tmp_path: Path) -> None:
    with cases.store(tmp_path) as store, trainer(store) as first:
        first.step(cases.batch(0))
        first.commit()
    changes = [
        ({"optimizer": optax.sgd(0.1)}, "is not part of this model and optimiser"),
        ({"compute_dtype": "bfloat16"}, "block0/weights/b is missing"),
        ({"key": jax.random.key(0)}, "key"),
        ({"schedule": "one_step_stale"}, "schedule"),
    ]
    with cases.store(tmp_path) as store:
        for change, match in changes:
            with pytest.raises(ValueError, match=match):
                trainer(store, **change)


class Trainings:
    """Processes that train one after the other, and may be killed."""

    def __init__(self, programs: Path) -> None:
        # Compiled once for all processes of a test.
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(programs),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("offload_process.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **cache},
        )  # fmt: skip

    def follow(
        self, folder: Path, schedule: str, stop: tuple[int, float] | None = None
    ) -> tuple[dict[int, str], int]:
        """Losses by step, and how it ended; killed so many steps and seconds after it began."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{folder} 18 {schedule} block1\n")
        self._server.stdin.flush()
        found: dict[int, str] = {}
        number = 0
        for line in self._server.stdout:
            kind, *words = line.split()
            if kind == "gone":
                return found, int(words[0])
            if kind == "process":
                number = int(words[0])
            if kind == "step":
                found[int(words[0])] = words[1]
            if stop is not None and kind in ("begin", "step") and len(found) == stop[0]:
                time.sleep(stop[1])
                os.kill(number, signal.SIGKILL)  # what it has said by then is still read
                stop = None
        raise AssertionError("the process that starts all others has ended")

    def close(self) -> None:
        """Ends them."""
        with self._server:
            self._server.kill()


def kill_and_go_on(tmp_path: Path, kills: int, schedule: str) -> None:
    rng, killed, folder = random.Random(4), 0, tmp_path
    with contextlib.closing(Trainings(tmp_path / "programs")) as trainings:
        wanted, _ = trainings.follow(tmp_path / "whole", schedule)
        assert sorted(wanted) == list(range(1, 19))
        for number in range(kills):
            if number % 4 == 0:
                folder = tmp_path / f"killed{number}"
            stop = (rng.randrange(6), rng.uniform(0.0, 0.05))
            seen, status = trainings.follow(folder, schedule, stop)
            assert all(wanted[step] == loss for step, loss in seen.items())
            assert status in (0, -signal.SIGKILL)
            killed += status != 0
        assert killed > kills // 2  # some may have been done before
        seen, status = trainings.follow(folder, schedule)
    assert status == 0
    assert all(wanted[step] == loss for step, loss in seen.items())
    with cases.store(folder) as a, cases.store(tmp_path / "whole") as b:
        assert a.meta == b.meta
        for name in a.written:
            with a.read(name).result() as x, b.read(name).result() as y:
                assert x.array.tobytes() == y.array.tobytes(), name


def test_a_killed_training_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    kill_and_go_on(tmp_path, 2, "overlap")


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["overlap", "one_step_stale"])
def test_killed_25_times(tmp_path: Path, schedule: str) -> None:
    kill_and_go_on(tmp_path, 25, schedule)


def test_export_to_safetensors(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    from safetensors.numpy import load_file

    with cases.store(tmp_path / "store") as store, trainer(store) as made:
        made.step(cases.batch(0))
        files = offload.to_safetensors(made, tmp_path / "out", state=True)
        params = made.params()
    index = json.loads(files[-1].read_text())
    assert index["weight_map"]["block0.w"] == "block0.safetensors"
    for name in cases.NAMES:
        found = load_file(tmp_path / "out" / f"{name}.safetensors")
        assert cases.equal(found[f"{name}.w"], params[name]["w"])
        assert found[f"{name}.state.0.count"].shape == ()


@pytest.mark.parametrize("export", [offload.to_safetensors, offload.to_orbax])
def test_an_export_that_would_lose_a_tensor_is_refused(tmp_path: Path, export: Any) -> None:
    """Paths are joined by dots, and these two are then one."""
    pytest.importorskip("safetensors")
    pytest.importorskip("orbax.checkpoint")

    def apply(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return jnp.mean((batch @ (params[0]["a.b"] + params[0]["a"]["b"])) ** 2)

    params = {"only": {"a.b": jnp.ones((3, 2)), "a": {"b": jnp.ones((3, 2))}}}
    layers = [offload.Layer(name="only", apply=apply)]
    message = r"different names for all tensors, got '.*a\.b' twice"
    with cases.store(tmp_path / "store") as store:
        trained = offload.Trainer(layers, params, optax.sgd(0.1), store=store)
        with trained, pytest.raises(ValueError, match=message):
            export(trained, tmp_path / "out")
        with pytest.raises(ValueError, match=message):
            export(store, tmp_path / "out")


def test_export_to_orbax(tmp_path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    with cases.store(tmp_path / "store") as store, trainer(store) as made:
        made.step(cases.batch(0), data=7)
        folder = offload.to_orbax(made, tmp_path / "out")
        params = made.params()
        with pytest.raises(ValueError, match="empty"):
            offload.to_orbax(made, folder)
    assert json.loads((folder / "trainer.json").read_text()) == {"steps": 1, "data": 7}
    with ocp.StandardCheckpointer() as reader:
        found = reader.restore(folder / "block1")
    assert np.asarray(found["params"]["w"]).tobytes() == params["block1"]["w"].tobytes()
    assert found["state"]["0.count"].shape == ()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_store_is_exported_without_its_model(tmp_path: Path) -> None:
    """What was committed, in the same files as by its trainer; large arrays and packed ones."""
    ocp = pytest.importorskip("orbax.checkpoint")
    pytest.importorskip("safetensors")
    from safetensors.numpy import load_file

    with cases.store(tmp_path / "store") as store, trainer(store) as made:
        made.step(cases.batch(0), data=7)
        made.commit()
        offload.to_safetensors(made, tmp_path / "a", state=True)
        offload.to_orbax(made, tmp_path / "b")
        made.step(cases.batch(1))  # is not committed
    with cases.store(tmp_path / "store") as store:
        offload.to_safetensors(store, tmp_path / "c", state=True)
        offload.to_orbax(store, tmp_path / "d")
    assert contents(tmp_path / "a").keys() == contents(tmp_path / "c").keys()
    index = "model.safetensors.index.json"
    notes = [json.loads((tmp_path / kind / index).read_text()) for kind in "ac"]
    assert notes[0] == notes[1]
    for name in cases.NAMES:
        found, wanted = (load_file(tmp_path / kind / f"{name}.safetensors") for kind in "ca")
        assert found
        assert cases.equal(found, wanted)
    with ocp.StandardCheckpointer() as reader:
        for name in cases.NAMES:
            found, wanted = (reader.restore(tmp_path / kind / name) for kind in "db")
            assert cases.equal(found, wanted)
    notes = [json.loads((tmp_path / kind / "trainer.json").read_text()) for kind in "bd"]
    assert notes[0] == notes[1] == {"steps": 1, "data": 7}
    with (
        offload.TensorStore(tmp_path / "other", 1 << 20, backend="threads") as store,
        pytest.raises(ValueError, match=r"the store of a training, got one of \d+ tensors"),
    ):
        offload.to_safetensors(store, tmp_path / "e")
    with pytest.raises(TypeError, match="expected a Trainer, or the TensorStore of one, got str"):
        offload.to_orbax(str(tmp_path / "store"), tmp_path / "e")  # type: ignore[arg-type]


def test_a_store_that_is_trained_in_is_not_exported(tmp_path: Path) -> None:
    """Some of its groups are of one step, some of another."""
    with cases.store(tmp_path / "store") as store, trainer(store) as made:
        made.step(cases.batch(0))
        with pytest.raises(ValueError, match=r"the store of Trainer\(.*; export that, or close it"):
            offload.to_safetensors(store, tmp_path / "out")
        made.commit()
        wanted = offload.to_safetensors(made, tmp_path / "out")
        before = contents(tmp_path / "out")
        with pytest.MonkeyPatch.context() as patch:  # a second export, which fails
            patch.setattr("safetensors.numpy.save_file", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                offload.to_safetensors(made, tmp_path / "out")
    assert contents(tmp_path / "out") == before
    assert before.keys() == {path.name for path in wanted}


@pytest.mark.parametrize("how", ["closed", "dropped", "failed"])
def test_steps_that_are_not_committed_are_told_and_not_exported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Their values would be named as of the step that is committed."""
    pytest.importorskip("safetensors")
    from safetensors.numpy import load_file

    with cases.store(tmp_path / "store") as store:
        made = trainer(store)
        made.step(cases.batch(0))
        made.commit()
        wanted = made.params()
        made.step(cases.batch(1))
        if how == "closed":
            made.close()
        elif how == "failed":
            with contextlib.suppress(KeyError), made:
                raise KeyError
        else:
            with pytest.warns(ResourceWarning):  # noqa: PT031  (of both)
                del made
                gc.collect()
        for export in (offload.to_safetensors, offload.to_orbax):
            with pytest.raises(ValueError, match=r"at step 1, got .*/params/.* call revert\(\)"):
                export(store, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        begins = "dropped without close()" if how == "dropped" else "closed"
        said = [r.getMessage().split(":")[0] for r in caplog.records if r.levelname == "WARNING"]
        assert said == [f"{begins} after step 2, the store has step 1"]
        store.revert()
        assert store.uncommitted == ()
        *files, index = offload.to_safetensors(store, tmp_path / "out")
    found = {name: x for file in files for name, x in load_file(file).items()}
    assert cases.equal(found, {f"{g}.{n}": x for g, t in wanted.items() for n, x in t.items()})
    assert json.loads(index.read_text())["metadata"]["steps"] == 1


def test_an_export_over_another_one_is_whole_wherever_it_ends(tmp_path: Path) -> None:
    """The index names files of one step, whichever of the renames fails, and no others are left."""
    pytest.importorskip("safetensors")
    from safetensors.numpy import load_file

    def held() -> tuple[int, dict[str, Any]]:
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        files = {*index["weight_map"].values()}
        found = {name: x for file in files for name, x in load_file(tmp_path / file).items()}
        assert found.keys() == index["weight_map"].keys()
        assert {path.name for path in tmp_path.iterdir()} == {
            *files, "model.safetensors.index.json", "other.safetensors"
        }  # fmt: skip
        return index["metadata"]["steps"], found

    def failing(real: Any, calls: Iterator[int], fails: int) -> Any:
        def move(self: Path, to: Path) -> Path:
            if next(calls) == fails:
                raise OSError("No space left on device")
            return real(self, to)

        return move

    (tmp_path / "other.safetensors").write_bytes(b"of somebody else")
    ours, index = tmp_path / "block1.safetensors", tmp_path / "model.safetensors.index.json"
    with offload.Trainer(cases.layers(), cases.params(), cases.optimizer()) as made:
        for fails in (0, 1, 2):  # of others: one of a name that an export wants, and an index
            ours.write_bytes(b"of somebody else")
            index.write_text('{"weight_map": {"x": "other.safetensors"}}')
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Path, "rename", failing(Path.rename, itertools.count(), fails))
                with pytest.raises(OSError, match="No space"):
                    offload.to_safetensors(made, tmp_path)
            assert contents(tmp_path) == {
                "block1.safetensors": b"of somebody else",
                "model.safetensors.index.json": index.read_bytes(),
                "other.safetensors": b"of somebody else",
            }
        ours.unlink()
        offload.to_safetensors(made, tmp_path)
        for fails in (0, 2, len(cases.NAMES)):
            before, calls = held(), itertools.count()
            made.step(cases.batch(fails))
            with pytest.MonkeyPatch.context() as patch:
                for name in ("rename", "replace"):
                    patch.setattr(Path, name, failing(getattr(Path, name), calls, fails))
                with pytest.raises(OSError, match="No space"):
                    offload.to_safetensors(made, tmp_path)
            assert held()[0] == before[0]
            assert cases.equal(held()[1], before[1])
            offload.to_safetensors(made, tmp_path)
            wanted = {f"{g}.{n}": x for g, tree in made.params().items() for n, x in tree.items()}
            assert held()[0] == made.steps
            assert cases.equal(held()[1], wanted)
        (tmp_path / "model.safetensors.index.json").write_text("[]")
        with pytest.raises(ValueError, match=r"folder: expected .* no index of one"):
            offload.to_safetensors(made, tmp_path)
    assert not (tmp_path / "export.new").exists()


def test_an_export_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")

    def apply(params: Any, x: Any, batch: Any, key: Any) -> Any:
        y = batch if x is None else x
        return y @ params[0]["w"] + jnp.sum(params[0]["none"])

    def loss(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return jnp.mean(apply(params, x, batch, key) ** 2)

    params = {
        name: {"w": jnp.ones((2, 2)), "none": jnp.ones(n)} for name, n in (("a", 1), ("b", 0))
    }
    layers = [offload.Layer(name="a", apply=apply), offload.Layer(name="b", apply=loss)]
    with offload.Trainer(layers, params, optax.sgd(0.1)) as trained:
        trained.step(jnp.ones((3, 2)))
        with pytest.raises(ValueError, match=r"no empty arrays.* got b none of shape \(0,\)"):
            offload.to_orbax(trained, tmp_path / "out")
        assert not contents(tmp_path)


def test_a_new_trainer_on_an_open_store_begins_with_what_was_committed(tmp_path: Path) -> None:
    """Not with what another one has written since, after good steps or in one that failed."""
    _, expected = cases.train(1, **OPTIONS)
    with cases.store(tmp_path) as store:
        with trainer(store) as first:
            first.step(cases.batch(0))
            first.commit()
            first.step(cases.batch(1))
            first.flush()
        with trainer(store) as second:
            assert second.steps == 1
            assert cases.equal(second.params(), expected)
            second.commit()
    with cases.store(tmp_path) as store, trainer(store) as third:
        assert third.steps == 1
        assert cases.equal(third.params(), expected)


@pytest.mark.parametrize(("commit_every", "steps"), [(2, 3), (2, 0), (1, 2), (None, 1)])
def test_steps_that_are_lost_at_the_end_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, commit_every: int | None, steps: int
) -> None:
    """The last one waits for the step after it; without ``commit_every`` all do."""
    with cases.store(tmp_path) as store, trainer(store, commit_every=commit_every) as first:
        for number in range(steps):
            first.step(cases.batch(number))
        if steps == 2:
            first.commit()
    expected = [f"closed after step {steps}, the store has step {steps - 1}"]
    said = [r.getMessage().split(":")[0] for r in caplog.records if r.levelname == "WARNING"]
    assert said == (expected if steps == 3 or commit_every is None else [])


def test_a_store_that_others_commit_can_be_left(tmp_path: Path) -> None:
    for meta in ({"mine": 1}, None):
        with cases.store(tmp_path / str(meta)) as store:
            with trainer(store, commit_every=1) as first:
                first.step(cases.batch(0))
                first.flush()
                store.commit(meta)
            assert store.meta == meta
            with pytest.raises(
                offload.MismatchError, match=r"store: expected an empty one, .*block0"
            ):
                trainer(store)  # it would begin anew


def test_another_model_after_an_attempt_that_did_not_begin(tmp_path: Path) -> None:
    """Its shapes and names were reserved, and nothing was committed."""
    wrong = {**cases.params(), "block0": {"w": np.full((cases.WIDTH, 300), np.nan, np.float32),
                                          "more": np.ones((300, 300), np.float32)}}  # fmt: skip
    capacity = offload.capacity(offload.tensors(wrong, cases.optimizer()))
    for params, fails in ((wrong, True), (cases.params(), False)):
        with (
            offload.TensorStore(tmp_path, capacity, backend="threads", staging=4 << 20) as store,
            pytest.raises(ValueError, match="block0: expected finite") if fails
            else contextlib.nullcontext(),
            offload.Trainer(cases.layers(), params, cases.optimizer(), store=store) as made,
        ):  # fmt: skip
            assert not fails
            made.step(cases.batch(0))
            made.commit()


def test_what_a_training_takes_is_the_same_however_it_is_reserved() -> None:
    """Gradients may get their place later, and layers of a few numbers share no block."""
    params = {f"block{n}": {"scale": np.ones(n, np.float32)} for n in range(1, 9)}
    tensors = offload.tensors(params, cases.optimizer(), gradients=True)
    apart = (offload.capacity({name: spec}) for name, spec in tensors.items())
    assert sum(apart) == offload.capacity(tensors) == 2 * 4096 * len(tensors)


def test_what_would_fail_later_does_so_before_anything_is_written(tmp_path: Path) -> None:
    with cases.store(tmp_path) as store:
        with pytest.raises(ValueError, match="device_bytes: expected room for the largest layer"):
            trainer(store, device_bytes=1000)
        with pytest.raises(TypeError, match="value") as caught:
            offload.Trainer(cases.layers(), cases.params(), optax.polyak_sgd(), store=store)
        assert "optimizer: it is given one group" in str(caught.value.__notes__)
        for asks, words in (
            (optax.polyak_sgd(), "scale_by_polyak.*value=. Choose a fixed"),
            (optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()), "needs value="),
            (optax.lbfgs(), "linesearch.*value=, grad=, value_fn="),
        ):
            with pytest.raises(TypeError, match=words):
                offload.Trainer(cases.layers(), cases.params(), asks, store=store)
        assert (store.written, store.commits) == ((), 0)
        trainer(store).close()


def test_layers_in_another_order_are_another_model(tmp_path: Path) -> None:
    layers = cases.layers()
    with cases.store(tmp_path) as store:
        trainer(store).close()
        layers[1], layers[2] = layers[2], layers[1]
        with pytest.raises(
            offload.MismatchError, match=r"its layer 1 uses \['block0'\], expected \["
        ):
            offload.Trainer(layers, cases.params(), cases.optimizer(), store=store)


def test_a_key_of_another_kind_is_another_key(tmp_path: Path) -> None:
    keys = (jax.random.key(1, impl=impl) for impl in ("rbg", "unsafe_rbg"))
    with cases.store(tmp_path) as store:
        trainer(store, key=next(keys)).close()
        with pytest.raises(ValueError, match=r"the key .*'rbg'.* got .*'unsafe_rbg'"):
            trainer(store, key=next(keys))


def test_a_commit_that_cannot_begin_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "offload commit":
            raise KeyboardInterrupt
        start(thread)

    with cases.store(tmp_path) as store:
        monkeypatch.setattr(threading.Thread, "start", fail)
        made = trainer(store, commit_every=1)
        made.step(cases.batch(0))
        with pytest.raises(KeyboardInterrupt), made:
            made.step(cases.batch(1))
        assert not [t for t in threading.enumerate() if t.name.startswith("offload")]
        monkeypatch.undo()
        with trainer(store) as again:
            assert again.steps == 0


def test_the_position_in_the_data_is_that_of_its_step(tmp_path: Path) -> None:
    """Though the caller goes on with the same object before it is committed."""
    position = {"next": 0}
    with cases.store(tmp_path) as store:
        with trainer(store, commit_every=1) as made:
            for number in range(3):
                position["next"] = number + 1
                made.step(cases.batch(number), data=position)
            assert made.data == {"next": 3}
            with pytest.raises(TypeError, match="data: expected what JSON can hold"):
                made.step(cases.batch(3), data={1, 2})
            assert made.steps == 3
            made.flush()
        assert store.meta["trainer"]["steps"] == 2
        assert store.meta["trainer"]["data"] == {"next": 2}


@pytest.mark.parametrize(
    ("small", "optimizer", "message"),
    [
        ({"scale": (12,), "shift": (12,)}, "adam", "a/params/b is not part of this model"),
        (
            {"w": (12,), "b": (13,)},
            "adam",
            r"a/params/b is float32\(12,\), expected float32\(13,\)",
        ),
        (
            {"w": (3, 4), "b": (12,)},
            "adam",
            r"a/params/w is float32\(12,\), expected float32\(3, 4\)",
        ),
        ({"w": (12,), "b": (12,)}, "adabelief", r"state of a is of kinds \['ScaleByAdamState"),
    ],
    ids=["names", "length", "shape", "optimiser"],
)
def test_small_arrays_of_another_model_are_named(
    tmp_path: Path, small: dict, optimizer: str, message: str
) -> None:
    """They share a tensor of the store, which has as many bytes as before."""
    layer = offload.Layer(name="a", apply=lambda params, x, batch, key: jnp.mean(batch["x"]))

    def made(shapes: dict, name: str, store: Any) -> offload.Trainer:
        params = {"a": {n: jnp.ones(shape, jnp.float32) for n, shape in shapes.items()}}
        return offload.Trainer([layer], params, getattr(optax, name)(1e-3), store=store)

    with cases.store(tmp_path) as store:
        made({"w": (12,), "b": (12,)}, "adam", store).close()
    with cases.store(tmp_path) as store:
        with pytest.raises(offload.MismatchError, match=message):
            made(small, optimizer, store)
        made({"w": (12,), "b": (12,)}, "adam", store).close()


def test_what_a_first_attempt_reserved_does_not_keep_a_training_from_going_on(
    tmp_path: Path,
) -> None:
    wrong = cases.params()
    wrong["block0"]["b"][0] = np.nan
    with cases.store(tmp_path) as store:
        with pytest.raises(ValueError, match="expected finite numbers"):
            offload.Trainer(cases.layers(), wrong, optax.adam(1e-3), store=store)
        with trainer(store, optimizer=optax.sgd(0.1)) as made:
            made.step(cases.batch(0))
            made.commit()
    with cases.store(tmp_path) as store, trainer(store, optimizer=optax.sgd(0.1)) as again:
        assert again.steps == 1
