"""A trainer's state for others to read: safetensors, and Orbax."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tensorjax.offload._training._trainer import Trainer


def to_safetensors(trainer: Trainer, folder: str | Path, *, state: bool = False) -> list[Path]:
    """Writes the parameters of a trainer as safetensors, one file for each group.

    One group is in memory at a time. Tensors are named ``group.path``; which file has which is in
    ``model.safetensors.index.json``, as Hugging Face writes it for models in parts.

    Args:
      trainer: its updates are finished first.
      folder: where files are written; made if absent.
      state: whether the optimiser's state is written too, as ``group.state.path``.

    Returns:
      The files, the index last.

    Raises:
      ValueError: this is one of several processes, or two tensors would have one name.
      ModuleNotFoundError: the package safetensors is missing.
    """
    from safetensors.numpy import save_file

    _check_alone()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files, where, total = [], {}, 0
    for name, params, held in trainer.groups():
        tensors = _named(name, params)
        if state:
            tensors = _joined(tensors, _named(f"{name}.state", held))
        _joined(where, tensors)
        path = folder / f"{name}.safetensors"
        save_file(tensors, path, metadata={"format": "np", "steps": str(trainer.steps)})
        where.update(dict.fromkeys(tensors, path.name))
        total += sum(x.nbytes for x in tensors.values())
        files.append(path)
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"metadata": {"total_size": total, "steps": trainer.steps}, "weight_map": where})
    )
    return [*files, index]


def to_orbax(trainer: Trainer, folder: str | Path) -> Path:
    """Writes parameters, states, number of steps and position in the data as Orbax checkpoints.

    A group is a checkpoint of its own, in a folder of its name, so that one is in memory at a time:
    ``ocp.StandardCheckpointer().restore(folder / name)`` gives "params" and "state", each a flat
    mapping from paths, their parts joined by dots, to arrays (such as "0.mu.kernel" of Adam). Steps
    and position are in ``trainer.json``, which is written last.

    Args:
      trainer: its updates are finished first.
      folder: where they are written; must be absent or empty.

    Returns:
      The folder.

    Raises:
      ModuleNotFoundError: the package orbax-checkpoint is missing.
      ValueError: the folder holds something, two tensors would have one name, or this is one of
        several processes.
    """
    import orbax.checkpoint as ocp

    _check_alone()
    folder = Path(folder).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"folder: expected an empty one, got {folder}; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    with ocp.StandardCheckpointer() as writer:
        for name, params, state in trainer.groups():
            # Optax's named tuples become lists of leaves by name: others need no Optax to read.
            tree = {"params": _named("", params), "state": _named("", state)}
            writer.save(folder / name, tree)
            writer.wait_until_finished()
    note = {"steps": trainer.steps, "data": trainer.data}
    (folder / "trainer.json").write_text(json.dumps(note))
    return folder


def _check_alone() -> None:
    """Of several processes, each has its parts: files of them would look like whole models."""
    if jax.process_count() > 1:
        raise ValueError(
            f"trainer: expected to export from a single process, got one of {jax.process_count()}; "
            "take Trainer.params, which joins the parts in all of them, and write that in one"
        )


def _named(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    """Arrays of a pytree by the names of their paths."""
    found: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        where = jax.tree_util.keystr(path, simple=True, separator=".")
        name = ".".join(filter(None, [prefix, where])) or "value"
        found = _joined(found, {name: np.asarray(leaf, order="C")})
    return found


def _joined(some: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Both, if they share no name: files would lack one of two tensors."""
    if twice := some.keys() & more.keys():
        raise ValueError(
            f"trainer: expected different names for all tensors, got {sorted(twice)[0]!r} twice, "
            "as paths are joined by dots; name groups and parameters without dots"
        )
    return some | more
