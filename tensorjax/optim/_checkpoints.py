"""Checkpoints of models and optimiser states in folders, replaced as a whole and verified."""

import json
import logging
import os
import shutil
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from tensorjax import _extras
from tensorjax._typing import PyTree
from tensorjax.optim._tensorised_layers import check_concrete, flatten

_log = logging.getLogger(__name__)
# File of checksums, which a folder gets last; and what Orbax writes beside it.
_SUMS = "checksums.json"
_METADATA = "_CHECKPOINT_METADATA"
_OF_ORBAX = (
    "_METADATA", "_sharding", "array_metadatas", "commit_success.txt", "d", "descriptor",
    "manifest.ocdbt", _METADATA, _SUMS,
)  # fmt: skip
_CHUNK = 1 << 22
_TURN = threading.RLock()


def replace(place: Path, write: Callable[[Path], object]) -> None:
    """Replaces a checkpoint folder atomically by one that a function writes.

    The new folder is written beside the old one, which is removed last. Where the process ends
    between the two renames, the old one is left under the name that `existing` looks for.

    Threads of one process take turns.

    Raises:
      FileExistsError: something that is no checkpoint of `optim.save` is at the place.
      OSError: the function failed, as where a disk is full.
    """
    with _TURN:
        _replace(place, write)


def _replace(place: Path, write: Callable[[Path], object]) -> None:
    check_replaceable(place)
    new, old = _beside(place, "new"), _beside(place, "old")
    first = jax.process_index() == 0
    if first:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove(new)
    _together("made")
    try:
        write(new)
        if first:
            (new / _SUMS).write_text(json.dumps(_checksums(new)))
    except BaseException as error:
        if first:  # nothing half-written is left
            _remove(new)
        if not isinstance(error, Exception):
            raise
        raise OSError(
            f"path: expected a folder that the checkpoint can be written to, got {place}: {error}; "
            "what was there before is unchanged"
        ) from error
    if first:
        if place.exists():
            _remove(old)
            _rename(place, old, new)
        new.rename(place)
        _remove(old)
    _together("replaced")


def check_replaceable(place: Path) -> None:
    """Checks that a path may be overwritten: free, an empty folder, or nothing but a checkpoint."""
    if odd := set("[]*?") & set(str(place)):
        raise ValueError(
            f"path: expected none of []*?, which Orbax takes for patterns, got {min(odd)} in "
            f"{place}"
        )
    if not place.exists():
        return
    if not place.is_dir():
        raise FileExistsError(f"path: expected a folder to make, got the file {place}")
    names = sorted(x.name for x in place.iterdir())
    strange = [x for x in names if x not in _OF_ORBAX and not x.startswith("ocdbt.process_")]
    if strange or (names and not (place / _METADATA).exists()):
        what = strange[0] if strange else "no checkpoint"
        raise FileExistsError(
            f"path: expected a new or an empty folder, or a checkpoint of optim.save to replace, "
            f"got {place} with {what} in it; name a folder of its own, as {place / 'step1'}"
        )


def existing(place: Path) -> Path:
    """Finds and verifies a checkpoint folder, or the older one if its replacement was interrupted.

    Raises:
      FileNotFoundError: no checkpoint at the place.
      ValueError: files that are missing or differ from those that were written.
    """
    found = place
    if not place.exists() and _beside(place, "old").is_dir():
        found = _beside(place, "old")
        _log.warning(
            "a save to %s was interrupted: the checkpoint before it is loaded, from %s",
            place, found,
        )  # fmt: skip
    if not found.exists():
        raise FileNotFoundError(f"path: expected a checkpoint of optim.save, got none at {place}")
    if not found.is_dir() or not any((found / name).exists() for name in (_METADATA, _SUMS)):
        inside = sorted(x.parent.name for x in found.glob(f"*/{_METADATA}"))
        hint = f"; there are checkpoints in it: {', '.join(inside[-3:])}" if inside else ""
        raise FileNotFoundError(
            f"path: expected a checkpoint of optim.save, got another "
            f"{'folder' if found.is_dir() else 'file'}, {place}{hint}"
        )
    if (found / _SUMS).exists():  # those of earlier versions have none
        _verify(found)
    return found


def damaged(place: Path, what: str) -> ValueError:
    """Builds the exception for a checkpoint that cannot be read."""
    return ValueError(
        f"path: expected an undamaged checkpoint of optim.save, got {place}: {what}; load an "
        "earlier one or a copy"
    )


def _verify(place: Path) -> None:
    try:
        wanted = json.loads((place / _SUMS).read_text())
        names = set(wanted)
    except (ValueError, TypeError):
        raise damaged(place, f"{_SUMS} cannot be read") from None
    found = _checksums(place)
    for name in sorted(names | set(found)):
        if found.get(name) != wanted.get(name):
            how = "is missing" if name not in found else "differs from what was written"
            raise damaged(place, f"{name} {how}")


def _checksums(place: Path) -> dict[str, list[int]]:
    """Computes size and CRC-32 of every file in a checkpoint, except for its checksum file."""
    sums = {}
    for path in sorted(place.rglob("*")):
        if path.is_file() and path != place / _SUMS:
            crc, size = 0, 0
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    crc, size = zlib.crc32(chunk, crc), size + len(chunk)
            sums[path.relative_to(place).as_posix()] = [size, crc]
    return sums


def _beside(place: Path, suffix: str) -> Path:
    """Returns a hidden folder name beside a checkpoint, for temporary copies of it."""
    return place.with_name(f".{place.name}.tensorjax-{suffix}")


def _remove(place: Path) -> None:
    """Removes a temporary checkpoint folder, with files that an interrupted Orbax left."""
    left = place.parent.glob(f"{place.name}.orbax-checkpoint-tmp*")
    for path in (place, *left):
        if path.is_dir():
            shutil.rmtree(path)


def _rename(place: Path, old: Path, new: Path) -> None:
    try:
        place.rename(old)
    except OSError as error:  # as of the root of a file system
        _remove(new)
        raise OSError(
            f"path: expected a folder that can be renamed, got {place}: {error}; name one in it"
        ) from error


def _together(name: str) -> None:
    """Waits at a barrier until all processes that save a checkpoint have reached it."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"tensorjax.optim.save: {name}")


def save(path: str | os.PathLike[str], *trees: PyTree) -> None:
    """Saves a checkpoint: models, parameters and optimiser states in a folder, of any shapes.

    Arrays are saved in the order of their leaves, with their names. `load` gives them back to
    containers of the same kind, made as at the start of the training: shapes come from the
    checkpoint, so a `shrink` in between does not matter.

    Args:
      path: folder to make. A checkpoint that is there is replaced when the new one is complete,
        so an interrupt or a full disk leaves one of them whole.
      trees: what is saved, such as ``(params, opt_state)`` or an nnx.Module and its
        nnx.Optimizer. Flax objects are saved together, so that what they share is saved once.

    Raises:
      TypeError: traced arrays; leaves that are neither arrays nor numbers, by name.
      FileExistsError: a file, or a folder with something else than one checkpoint in it.
      OSError: files that cannot be written; the checkpoint before is unchanged.
      ValueError: one of []*? in the path; arrays without elements, which Orbax does not take: those
        of whole layers that ``shrink(…, keep_one=False)`` has removed.

    Example:
      >>> import tempfile, jax.numpy as jnp, optax
      >>> from tensorjax import optim
      >>> gates = [jnp.array([1.0, 0.0, 0.2])]
      >>> params = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": gates}
      >>> small, state = optim.shrink(params, optax.adam(1e-3).init(params))
      >>> path = tempfile.mkdtemp()
      >>> optim.save(path, small, state)
      >>> found, state = optim.load(path, params, optax.adam(1e-3).init(params))
      >>> found["cores"][0].shape, state[0].mu["cores"][1].shape
      ((1, 4, 2), (2, 5, 1))

    Source: ours, over `orbax.checkpoint`.
    """
    arrays, names, _ = _flat(trees)
    check_concrete("save", arrays)
    for name, x in zip(names, arrays, strict=True):
        if not isinstance(x, jax.Array) and not _is_numeric(x):
            raise TypeError(
                f"trees: expected arrays and numbers, got {type(x).__name__} at {name}; keep what "
                "is neither in a file of its own"
            )
    empty = [name for name, x in zip(names, arrays, strict=True) if np.size(x) == 0]
    if empty:
        raise ValueError(
            f"trees: expected arrays with elements, got none at {empty[0]}; take layers that "
            "shrink(keep_one=False) has removed out of the model"
        )
    keyed = {_key(n, name): x for n, (name, x) in enumerate(zip(names, arrays, strict=True))}
    place = Path(path).resolve()
    check_replaceable(place)

    def write(new: Path) -> None:
        with _checkpointer() as checkpointer:
            checkpointer.save(new, keyed)

    replace(place, write)


def load(path: str | os.PathLike[str], *trees: PyTree) -> PyTree:
    """Loads a checkpoint of `save` into models, parameters and optimiser states of any shapes.

    Args:
      path: folder of the checkpoint.
      trees: as many as were saved, made as at the start of the training. Cores, factors and gates
        of tensorised layers, and what an optimiser keeps for them, take the shapes that were saved;
        all other arrays have the same shape and all the same dtype. Shardings are kept where the
        shape is the same. Flax objects are changed in place.

    Returns:
      The trees with the arrays of the checkpoint, as a tuple; one tree alone as it is.

    Raises:
      ValueError: other arrays in the checkpoint, by number, name, shape or dtype, than in the
        trees; files that are damaged, by their checksums.
      FileNotFoundError: no checkpoint at the path.

    Example:
      >>> import tempfile
      >>> from flax import nnx
      >>> import optax
      >>> from tensorjax import nn, optim
      >>> def fresh():
      ...     model = nn.TTLinear(8, 8, rank=3, order=1, rngs=nnx.Rngs(0))
      ...     return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
      >>> model, optimizer = fresh()
      >>> model.gates[0][...] = model.gates[0][...].at[1].set(0.0)
      >>> optim.shrink_model(model, optimizer)
      >>> path = tempfile.mkdtemp()
      >>> optim.save(path, model, optimizer)
      >>> model, optimizer = optim.load(path, *fresh())
      >>> model.ranks
      (2,)

    Source: ours, over `orbax.checkpoint`.
    """
    arrays, names, rebuilt = _flat(trees)
    place = existing(Path(path).resolve())
    wanted = [_key(n, name) for n, name in enumerate(names)]
    with _checkpointer() as checkpointer:
        try:
            saved = checkpointer.metadata(place).item_metadata.tree
        except Exception as error:  # of many kinds, by what is damaged
            raise damaged(place, "its metadata cannot be read") from error
        odd = sorted(set(wanted) ^ set(saved))
        if odd:
            where = "checkpoint" if odd[0] in saved else "trees"
            raise ValueError(
                f"trees: expected those that were saved, {len(saved)} arrays, got {len(wanted)}; "
                f"{odd[0]} is in the {where} alone: make model and optimiser as for the training"
            )
        like = {
            _key(n, name): _like(name, saved[_key(n, name)], x)
            for n, (name, x) in enumerate(zip(names, arrays, strict=True))
        }
        try:
            found = checkpointer.restore(place, like)
        except Exception as error:
            raise damaged(place, "its arrays cannot be read") from error
    return rebuilt([found[key] for key in wanted])


def _like(name: str, saved: Any, old: Any) -> jax.ShapeDtypeStruct:
    """Returns shape, dtype and sharding to load a checkpoint's array with, or ValueError."""
    shape = tuple(saved.shape)
    dtype = old.dtype if hasattr(old, "dtype") else saved.dtype  # Python's numbers have none
    same = shape == np.shape(old)
    shrinks = bool({"cores", "core", "factors", "gates"} & set(name.split("/")))
    if saved.dtype != dtype or not (same or (shrinks and len(shape) == np.ndim(old))):
        raise ValueError(
            f"trees: expected {name} as it was saved, {saved.dtype} {shape}, got {dtype} "
            f"{np.shape(old)}: make model and optimiser as for the training"
        )
    sharding = old.sharding if same and isinstance(old, jax.Array) else None
    return jax.ShapeDtypeStruct(shape, saved.dtype, sharding=sharding)


def _is_numeric(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.generic | int | float | complex) and (
        np.asarray(x).dtype.kind not in "OSUMm"
    )


def _key(number: int, name: str) -> str:
    return f"{number:06d}:{name}"


def _checkpointer() -> Any:
    with _extras.needed_by("tensorjax.optim.save"):
        import orbax.checkpoint
    return orbax.checkpoint.StandardCheckpointer()


def _flat(trees: tuple[Any, ...]) -> tuple[list[Any], list[str], Any]:
    """Flattens trees to named arrays for a checkpoint; returns also a function to rebuild them."""
    if not trees:
        raise ValueError("trees: expected at least one model, tree or state, got none")
    objects = [n for n, tree in enumerate(trees) if _is_flax(tree)]
    plain = [n for n in range(len(trees)) if n not in objects]
    whole: Any = [trees[n] for n in plain]
    if objects:
        from flax import nnx

        whole = [nnx.state(tuple(trees[n] for n in objects)), whole]
    paths, leaves, structure = flatten(whole)
    keys = [isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            for x in leaves]  # fmt: skip
    arrays = [jax.random.key_data(x) if key else x for x, key in zip(leaves, keys, strict=True)]

    def rebuilt(found: list[Any]) -> Any:
        new = [
            jax.random.wrap_key_data(x, impl=jax.random.key_impl(old)) if key else x
            for x, old, key in zip(found, leaves, keys, strict=True)
        ]
        back = jax.tree.unflatten(structure, new)
        out = list(trees)
        if objects:
            nnx.update(tuple(trees[n] for n in objects), back[0])
            back = back[1]
        for n, tree in zip(plain, back, strict=True):
            out[n] = tree
        return out[0] if len(out) == 1 else tuple(out)

    return arrays, ["/".join(map(str, path)) for path in paths], rebuilt


def _is_flax(tree: Any) -> bool:
    """Whether a tree to save as a checkpoint is a Flax NNX object, without importing Flax."""
    return any(kind.__module__.startswith("flax.nnx") and kind.__name__ in ("Module", "Pytree")
               for kind in type(tree).__mro__)  # fmt: skip
