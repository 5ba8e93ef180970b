"""Export of a training to safetensors files or Orbax checkpoints."""

import contextlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _extras
from tensorjax.offload._errors import listed
from tensorjax.offload._store.store import TensorStore
from tensorjax.offload._training.commits import FORMAT, in_use, wait_for_ending
from tensorjax.offload._training.storage.tensor_packing import Leaf, TensorPacking, unpacked
from tensorjax.offload._training.trainer import Trainer

Arrays = dict[str, np.ndarray]  # by path
_NOTE, _NEW, _INDEX = "trainer.json", "export.new", "model.safetensors.index.json"


class _Part(NamedTuple):
    """Parameters and optimiser state of one group to be exported, as arrays by path."""

    name: str
    params: Arrays
    state: Arrays


def to_safetensors(
    source: Trainer | TensorStore, folder: str | Path, *, state: bool = False
) -> list[Path]:
    """Exports a training's parameters as safetensors files, one for each parameter group.

    One group is in memory at a time. Tensors are named ``group.path``; which file has which is in
    ``model.safetensors.index.json``, as Hugging Face writes it for models in parts.

    Over an earlier export in the folder, or files of others there, files get names that these have
    not, such as ``group.1.safetensors``. So whatever ends an export, the index names files of one
    step: the earlier ones until it is replaced, which it is at once; then they are removed.

    Args:
      source: a trainer, whose updates are finished first; or a store that one has trained in, and
        none does any more, which needs neither model nor optimiser: just opened, or reverted, it
        has what was committed. An array that is a group by itself is named ``group``.
      folder: where files are written; made if absent.
      state: whether the optimiser's state is written too, as ``group.state.path``.

    Returns:
      The files, the index last.

    Raises:
      ValueError: this is one of several processes, two tensors would have one name, the store
        holds no training, or what a trainer has written and not committed, or the folder has an
        index that cannot be read.
      ModuleNotFoundError: the package safetensors is missing.

    Example:
      >>> import tempfile
      >>> import jax.numpy as jnp
      >>> import optax
      >>> from tensorjax import offload
      >>> layers = [offload.Layer(name="a", apply=lambda p, x, b, key: jnp.mean((b @ p[0]) ** 2))]
      >>> trainer = offload.Trainer(layers, {"a": jnp.ones((4, 2))}, optax.sgd(0.1))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     [path.name for path in offload.to_safetensors(trainer, folder)]
      ['a.safetensors', 'model.safetensors.index.json']
      >>> trainer.close()

    Source: the format of Hugging Face's safetensors, and its index of files for models in parts.
    """
    with _extras.needed_by("tensorjax.offload.to_safetensors"):
        from safetensors.numpy import save_file

    steps, _ = _progress(source)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files, where, total = [], {}, 0
    with _nothing_half_written([folder / _NEW]) as written:
        new = written[0]
        shutil.rmtree(new, ignore_errors=True)  # of an export that was killed
        new.mkdir()
        index = folder / _INDEX
        before, ours = _files_of(index)
        for part in _parts(source):
            tensors = _prefixed(part.name, part.params)
            if state:
                _join(tensors, _prefixed(f"{part.name}.state", part.state))
            _join(where, dict.fromkeys(tensors, f"{part.name}.safetensors"))
            files.append(new / f"{part.name}.safetensors")
            save_file(tensors, files[-1], metadata={"format": "np", "steps": str(steps)})
            total += sum(x.nbytes for x in tensors.values())
        there = before.union(path.name for path in folder.iterdir())
        names = _free_names([path.name for path in files], there)
        where = {tensor: names[file] for tensor, file in where.items()}
        note = {"metadata": {"total_size": total, "steps": steps}, "weight_map": where}
        (new / _INDEX).write_text(json.dumps(note))
        for path in files:
            path.rename(folder / names[path.name])
            written.append(folder / names[path.name])
        moved, written[1:] = written[1:], []
        try:
            (new / _INDEX).replace(index)  # from here on it is the new export
        except OSError:
            written += moved
            raise
    for name in before if ours else ():
        with contextlib.suppress(OSError):  # no index names them any more
            (folder / name).unlink()
    with contextlib.suppress(OSError):
        new.rmdir()
    return [*moved, index]


def to_orbax(source: Trainer | TensorStore, folder: str | Path) -> Path:
    """Exports a training's parameters, optimiser state and progress as Orbax checkpoints.

    A group is a checkpoint of its own, in a folder of its name, so that one is in memory at a time:
    ``ocp.StandardCheckpointer().restore(folder / name)`` gives "params" and "state", each a flat
    mapping from paths, their parts joined by dots, to arrays (such as "0.mu.kernel" of Adam); the
    path of a group that is one array is "value". Steps and position are in ``trainer.json``, which
    is written last.

    Args:
      source: a trainer or a store, as for `to_safetensors`.
      folder: where they are written; must be absent or empty.

    Returns:
      The folder.

    Raises:
      ModuleNotFoundError: the package orbax-checkpoint is missing.
      ValueError: the folder holds something, two tensors would have one name, an array is empty,
        which Orbax does not keep, this is one of several processes, or the store holds no training,
        or what a trainer has written and not committed.

    Example:
      >>> import tempfile
      >>> import jax.numpy as jnp
      >>> import optax
      >>> from tensorjax import offload
      >>> layers = [offload.Layer(name="a", apply=lambda p, x, b, key: jnp.mean((b @ p[0]) ** 2))]
      >>> trainer = offload.Trainer(layers, {"a": jnp.ones((4, 2))}, optax.sgd(0.1))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     sorted(path.name for path in offload.to_orbax(trainer, folder).iterdir())
      ['a', 'trainer.json']
      >>> trainer.close()

    Source: ours; the format is that of Orbax.
    """
    with _extras.needed_by("tensorjax.offload.to_orbax"):
        import orbax.checkpoint as ocp

    steps, data = _progress(source)
    folder = Path(folder).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"folder: expected an empty one, got {folder}; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with _nothing_half_written(written), ocp.StandardCheckpointer() as writer:
        for part in _parts(source):
            _check_for_orbax(part)
            # Optax's named tuples become lists of leaves by name: others need no Optax to read.
            tree = {"params": _named_all(part.params), "state": _named_all(part.state)}
            written.append(folder / part.name)
            writer.save(folder / part.name, tree)
            writer.wait_until_finished()
    (folder / _NOTE).write_text(json.dumps({"steps": steps, "data": data}))
    return folder


def _files_of(index: Path) -> tuple[set[str], bool]:
    """Returns the files that an earlier export's index names, and whether a trainer wrote it."""
    if not index.exists():
        return set(), False
    try:
        found = json.loads(index.read_text())
        metadata = found.get("metadata")  # which others need not write
        ours = isinstance(metadata, dict) and "steps" in metadata
        return {Path(name).name for name in found["weight_map"].values()}, ours
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            f"folder: expected none, or one with an earlier export, got {index}, which is no index "
            "of one; choose another folder"
        ) from error


def _free_names(files: list[str], before: set[str]) -> dict[str, str]:
    """Chooses names of an export's files that no earlier one, or file of others, has."""
    found, taken = {}, {*before, *files}
    for file in files:
        stem, name = file.removesuffix(".safetensors"), file
        if file in before:
            others = (f"{stem}.{n}.safetensors" for n in itertools.count(1))
            name = next(other for other in others if other not in taken)
        taken.add(name)
        found[file] = name
    return found


@contextlib.contextmanager
def _nothing_half_written(written: list[Path]) -> Iterator[list[Path]]:
    """Context manager that deletes an export's files if an error interrupts it."""
    try:
        yield written
    except BaseException:
        for path in written:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        raise


def _progress(source: Any) -> tuple[int, Any]:
    """Returns the number of steps and the data position of a training to be exported."""
    if not isinstance(source, Trainer | TensorStore):
        raise TypeError(
            f"source: expected a Trainer, or the TensorStore of one, got {type(source).__name__}"
        )
    # Of several processes, each has its parts: files of them would look like whole models.
    count = jax.process_count() if isinstance(source, Trainer) else source.process[1]
    if count > 1:
        raise ValueError(
            f"source: expected to export from a single process, got one of {count}; "
            "take Trainer.params, which joins the parts in all of them, and write that in one"
        )
    if isinstance(source, Trainer):
        return source.steps, source.data
    if (trainer := in_use(source)) is not None:
        raise ValueError(
            f"source: expected a trainer, or a store that none goes on in, got the store of "
            f"{trainer!r}; export that, or close it"
        )
    wait_for_ending(source)  # of one that was dropped, what it still writes
    held = _held(source)
    if found := source.uncommitted:
        raise ValueError(
            f"source: expected a store as it was committed, at step {held['steps']}, got one in "
            f"which {listed(found)} were written since, by a trainer that ended without a commit; "
            "call revert() of the store, which forgets that, and next time commit() of the trainer"
        )
    return held["steps"], held["data"]


def _parts(source: Trainer | TensorStore) -> Iterator[_Part]:
    """Yields the parameters and optimiser state of a training to be exported, group by group."""
    if isinstance(source, Trainer):
        for name, params, state in source.groups():
            yield _Part(name, _named(name, params), _named(f"{name}: state", state))
        return
    model = _held(source)["model"]
    for name in dict.fromkeys(name for uses in model["layers"] for name in uses):
        params, state = (
            _read(source, f"{name}/{kind}/", model["packed"].get(f"{name}/{kind}", ()))
            for kind in ("params", "state")
        )
        yield _Part(name, params, state)


def _held(store: TensorStore) -> dict[str, Any]:
    meta = store.meta
    if not isinstance(meta, dict) or not isinstance(meta.get("trainer"), dict):
        raise ValueError(
            f"source: expected the store of a training, got one of {len(store.names)} tensors of "
            "somebody's own; read them, and save their arrays by safetensors or Orbax"
        )
    if (found := meta["trainer"].get("format")) != FORMAT:
        raise ValueError(f"source: expected a training of format {FORMAT}, got {found!r}")
    return meta["trainer"]


def _read(store: TensorStore, prefix: str, packed: Any) -> Arrays:
    """Reads the arrays of one pytree to be exported from a store, as copies by their paths."""
    found: Arrays = {}
    small = [Leaf(path, tuple(shape), jnp.dtype(dtype)) for path, dtype, shape in packed]
    seen: dict[str, Leaf] = {}
    for leaf in small:
        _join(seen, {leaf.path: leaf}, prefix)
    for name in (name for name in store.names if name.startswith(prefix)):
        with store.read(name).result() as lease:
            path = name.removeprefix(prefix)
            several = path == TensorPacking.PACKED
            arrays = unpacked(lease.array, small) if several else {path: lease.array}
            copies = {path: np.array(x) for path, x in arrays.items()}
            _join(found, copies, prefix.rstrip("/").replace("/", ": "))
            del arrays
    if found.keys() == {"value"}:  # most likely an array by itself
        return {"": found["value"]}
    return found


def _named(where: str, tree: Any) -> Arrays:
    """Names the arrays of a pytree by their paths, as exports by `to_safetensors` write them."""
    found: Arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        _join(found, {name: np.asarray(leaf, order="C")}, where)
    return found


def _check_for_orbax(part: _Part) -> None:
    if part.name == _NOTE:
        raise ValueError(f"source: expected groups of other names than {_NOTE!r}, a file here")
    for path, x in (*part.params.items(), *part.state.items()):
        if not x.size:
            raise ValueError(
                f"source: expected no empty arrays, which Orbax does not keep, got {part.name} "
                f"{path} of shape {x.shape}; take to_safetensors"
            )


def _named_all(arrays: Arrays) -> Arrays:
    return {path or "value": x for path, x in arrays.items()}


def _prefixed(prefix: str, arrays: Arrays) -> Arrays:
    return {f"{prefix}.{path}" if path else prefix: x for path, x in arrays.items()}


def _join(some: dict[str, Any], more: Mapping[str, Any], where: str = "") -> None:
    """Adds exported arrays to a dictionary; raises ValueError for a name that it has already."""
    if twice := [name for name in more if name in some]:
        name = ".".join(filter(None, [where, sorted(twice)[0]]))
        raise ValueError(
            f"source: expected different names for all tensors, got {name!r} twice, as paths are "
            "joined by dots; name groups and parameters without dots"
        )
    some.update(more)
