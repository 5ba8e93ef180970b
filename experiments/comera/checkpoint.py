"""Checkpoints of a training by Orbax, for arrays whose shapes shrink."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from experiments._results import plain, write_atomically


def save(path: Path, state: Any, note: Mapping[str, Any]) -> None:
    """Writes a checkpoint of ``state`` with a note, in place of the previous one.

    The note is written last, in one step, and says which folder of leaves is whole; the older one
    is removed only then.
    """
    leaves = [_array(x) for x in jax.tree.leaves(state)]
    # Orbax refuses arrays of size zero, of which nothing but the shape is to be kept.
    empty = {str(k): list(x.shape) for k, x in enumerate(leaves) if not x.size}
    full = {str(k): x for k, x in enumerate(leaves) if x.size}
    old = _read(path)
    number = 0 if old is None else old["number"] + 1
    folder = _leaves(path, number).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, full)
    content = {"number": number, "empty": empty, "note": plain(note)}
    write_atomically(path, json.dumps(content, allow_nan=False) + "\n")
    if old is not None:
        shutil.rmtree(_leaves(path, old["number"]), ignore_errors=True)


def load(path: Path, like: Any) -> tuple[Any, dict[str, Any]] | None:
    """Reads a checkpoint: state and note; None if there is none.

    Args:
        path: That of ``save``.
        like: A state of the same structure; its shapes may differ.
    """
    content = _read(path)
    if content is None:
        return None
    leaves, treedef = jax.tree.flatten(like)
    folder = _leaves(path, content["number"]).absolute()
    with ocp.StandardCheckpointer() as checkpointer:
        shapes = checkpointer.metadata(folder).item_metadata.tree
        target = {k: jax.ShapeDtypeStruct(x.shape, x.dtype) for k, x in shapes.items()}
        full = checkpointer.restore(folder, target)
    found = []
    for k, old in enumerate(leaves):
        if str(k) in content["empty"]:
            found.append(jnp.zeros(content["empty"][str(k)], old.dtype))
        elif _is_key(old):
            impl = jax.random.key_impl(old) if isinstance(old, jax.Array) else old.dtype._impl
            found.append(jax.random.wrap_key_data(jnp.asarray(full[str(k)]), impl=impl))
        else:
            found.append(jnp.asarray(full[str(k)]))
    return jax.tree.unflatten(treedef, found), content["note"]


def remove(path: Path) -> None:
    """Removes a checkpoint, if there is one."""
    content = _read(path)
    path.unlink(missing_ok=True)
    if content is not None:
        shutil.rmtree(_leaves(path, content["number"]), ignore_errors=True)


def _leaves(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}-{number}")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if _leaves(path, content["number"]).is_dir() else None


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _array(x: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(x) if _is_key(x) else x)
