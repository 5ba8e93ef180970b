"""Tests of `optim.save` and `optim.load`: interrupts, damage, foreign folders, other arrays."""

import concurrent.futures
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tensorjax import optim
from tensorjax.optim import _checkpoints


def tree(seed: int, size: int = 6) -> dict:
    return {"a": jax.random.normal(jax.random.key(seed), (size,)), "n": {"b": jnp.arange(seed + 2)}}


def same(found, wanted) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


# In a process of its own, for threads of Orbax outlive the error.
FULL_DISK = """
import pathlib, resource, signal, sys
import jax.numpy as jnp
import numpy as np
from tensorjax import optim
place, before = pathlib.Path(sys.argv[1]), {"a": jnp.asarray(np.random.rand(100_000))}
optim.save(place, before)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, -1))
try:
    optim.save(place, {"a": jnp.asarray(np.random.rand(120_000))})
except OSError as error:
    assert "what was there before is unchanged" in str(error), error
else:
    raise AssertionError("no error")
assert [x.name for x in place.parent.iterdir()] == ["x"]
assert (optim.load(place, before)["a"] == before["a"]).all()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file sizes are POSIX's")
def test_a_save_that_fails_leaves_the_checkpoint_before(tmp_path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ended_after", [0, 1, 2])
def test_an_interrupt_between_the_renames_loses_nothing(
    tmp_path, monkeypatch, caplog, ended_after
) -> None:
    optim.save(tmp_path / "x", tree(2))
    rename, calls = Path.rename, []

    def interrupted(path: Path, to: Path) -> Path:
        calls.append(path)
        if len(calls) > ended_after:
            raise KeyboardInterrupt
        return rename(path, to)

    monkeypatch.setattr(_checkpoints.Path, "rename", interrupted)
    new = {"a": jnp.zeros(6), "n": {"b": jnp.zeros(4, int)}}
    if ended_after < 2:
        with pytest.raises(KeyboardInterrupt):
            optim.save(tmp_path / "x", new)
    else:
        optim.save(tmp_path / "x", new)
    monkeypatch.undo()
    same(optim.load(tmp_path / "x", tree(2)), new if ended_after == 2 else tree(2))
    assert ("was interrupted" in caplog.text) == (ended_after == 1)
    optim.save(tmp_path / "x", new)  # what was left does not stop the next one
    same(optim.load(tmp_path / "x", tree(2)), new)
    assert [x.name for x in tmp_path.iterdir()] == ["x"]


def test_nothing_but_a_checkpoint_is_replaced(tmp_path, rng) -> None:
    kept = tmp_path / "data" / f"{rng.integers(100)}.tex"
    kept.parent.mkdir()
    kept.write_text("x")
    optim.save(tmp_path / "run" / "step1", tree(1))
    (tmp_path / "file").write_text("x")
    for place in ("data", "run", "file"):
        with pytest.raises(FileExistsError, match=f"path: expected .*{place}"):
            optim.save(tmp_path / place, tree(1))
    optim.save(tmp_path / "run" / "step2", tree(2))
    (tmp_path / "run" / "step2" / "notes.md").write_text("x")
    with pytest.raises(FileExistsError, match=r"notes\.md"):
        optim.save(tmp_path / "run" / "step2", tree(2))
    assert kept.read_text() == "x"
    same(optim.load(tmp_path / "run" / "step1", tree(1)), tree(1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for _ in range(2):
        optim.save(tmp_path / "link", tree(3))
        same(optim.load(tmp_path / "empty", tree(3)), tree(3))


def test_folders_beside_a_checkpoint_stay(tmp_path) -> None:
    for name in ("run.old", "run.new", "run.orbax"):
        optim.save(tmp_path / name, tree(2))
    with pytest.raises(FileNotFoundError, match="got none"):
        optim.load(tmp_path / "run", tree(2))
    for seed in (1, 3):
        optim.save(tmp_path / "run", tree(seed))
    names = sorted(x.name for x in tmp_path.iterdir())
    assert names == ["run", "run.new", "run.old", "run.orbax"]
    same(optim.load(tmp_path / "run.old", tree(2)), tree(2))
    same(optim.load(tmp_path / "run", tree(3)), tree(3))


def test_damage_is_found_in_every_file(tmp_path, rng) -> None:
    optim.save(tmp_path / "x", tree(1, 3000))
    files = sorted(x for x in (tmp_path / "x").rglob("*") if x.is_file() and x.stat().st_size)
    for file in files:
        whole = file.read_bytes()
        at = int(rng.integers(len(whole)))
        flipped = bytes([whole[at] ^ 1 << int(rng.integers(8))])
        for spoilt in (whole[:at], whole[:at] + flipped + whole[at + 1 :], None):
            file.unlink() if spoilt is None else file.write_bytes(spoilt)
            # Without the checksums a checkpoint is one of an earlier version.
            if spoilt is not None or file.name != "checksums.json":
                with pytest.raises(ValueError, match="path: expected an undamaged checkpoint"):
                    optim.load(tmp_path / "x", tree(1, 3000))
            file.write_bytes(whole)
    same(optim.load(tmp_path / "x", tree(1, 3000)), tree(1, 3000))


def test_what_is_no_checkpoint_is_named(tmp_path) -> None:
    optim.save(tmp_path / "run" / "step1", tree(1))
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileNotFoundError, match=r"another folder.*checkpoints in it: step1"):
        optim.load(tmp_path / "run", tree(1))
    with pytest.raises(FileNotFoundError, match="another file"):
        optim.load(tmp_path / "file", tree(1))
    with pytest.raises(ValueError, match=r"none of \[\]\*\?"):
        optim.save(tmp_path / "run[1]", tree(1))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="another folder"):
        optim.load(tmp_path / "empty", tree(1))


@pytest.mark.parametrize("leaf", ["run1", object(), np.array(["a"]), np.array([None])])
def test_leaves_that_are_no_arrays_are_named_before_anything_is_written(tmp_path, leaf) -> None:
    optim.save(tmp_path / "x", tree(1))
    for path in ("x", "y"):
        with pytest.raises(
            TypeError, match=r"trees: expected arrays and numbers, got .* at .*name"
        ):
            optim.save(tmp_path / path, {"a": jnp.ones(3), "name": leaf})
    same(optim.load(tmp_path / "x", tree(1)), tree(1))
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    ("saved", "other", "name"),
    [
        (lambda: nnx.Linear(4, 10, rngs=nnx.Rngs(0)), lambda: nnx.Linear(4, 8, rngs=nnx.Rngs(0)),
         "bias"),
        (lambda: nnx.Embed(10, 4, rngs=nnx.Rngs(0)), lambda: nnx.Embed(20, 4, rngs=nnx.Rngs(0)),
         "embedding"),
        (lambda: {"w": jnp.ones((3, 2))}, lambda: {"w": jnp.ones(6)}, "w"),
        (lambda: {"cores": [jnp.ones((1, 6))]}, lambda: {"cores": [jnp.ones(6)]}, "cores/0"),
        (lambda: {"w": jnp.ones(3)}, lambda: {"w": jnp.ones(3, jnp.bfloat16)}, "w"),
    ],
)  # fmt: skip
def test_dense_arrays_of_other_shapes_or_dtypes_are_refused(tmp_path, saved, other, name) -> None:
    optim.save(tmp_path / "x", saved())
    with pytest.raises(ValueError, match=f"trees: expected .*{name} as it was saved"):
        optim.load(tmp_path / "x", other())


def test_numbers_of_python_are_loaded(tmp_path) -> None:
    optim.save(tmp_path / "x", {"step": 3, "rate": 0.5, "w": np.float32(2)})
    found = optim.load(tmp_path / "x", {"step": 0, "rate": 0.0, "w": np.float32(0)})
    assert (int(found["step"]), float(found["rate"]), float(found["w"])) == (3, 0.5, 2.0)


def test_threads_that_save_to_one_path_take_turns(tmp_path) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        saves = [pool.submit(optim.save, tmp_path / "c", {"a": np.full(3, i)}) for i in range(4)]
    assert not any(save.exception() for save in saves)
    assert optim.load(tmp_path / "c", {"a": np.zeros(3, int)})["a"][0] in range(4)
