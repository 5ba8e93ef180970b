"""Checkpoints of a training by Orbax: written in blocks, read onto any mesh."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from experiments._results import plain


class Checkpoints:
    """Checkpoints of one training in a folder, of which the newest are kept.

    Args:
        folder: Where they lie; made if absent. A step is whole or absent: Orbax renames it last.
        settings: What the training depends on. They are kept beside the state, and compared.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self.settings = folder.absolute(), plain(settings)
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, step: int, state: Any, records: Any, since: Any = None) -> None:
        """Writes a checkpoint: a state, and records of the steps before it.

        Args:
            step: How many were done.
            state: After them.
            records: Of the evaluations so far.
            since: What is known of the steps since the last one.
        """
        note = {"settings": self.settings, "records": plain(records), "since": plain(since or {})}
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(_named(state)), note=ocp.args.JsonSave(note)
        )
        self.manager.save(step, args=args)

    @property
    def newest(self) -> int | None:
        """Step of the newest checkpoint, or None if there is none."""
        return self.manager.latest_step()

    def restore(self, like: Any) -> tuple[int, Any, list[dict[str, Any]], dict[str, Any]] | None:
        """Reads the newest checkpoint: step, state and records; None if there is none.

        Args:
            like: A state of the same structure: shapes, dtypes, and shardings that the arrays
                are read onto, whatever they were written from.

        Raises:
            ValueError: It is of a training with other settings; the message names them.
        """
        step = self.newest
        if step is None:
            return None
        note = self.manager.restore(step, args=ocp.args.Composite(note=ocp.args.JsonRestore()))[
            "note"
        ]
        self._check(note["settings"])
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, _named(like))
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        found = self.manager.restore(step, args=args)["state"]
        leaves = [found[name] for name in _named(like)]
        state = jax.tree.unflatten(jax.tree.structure(like), leaves)
        return step, state, note["records"], note.get("since", {})

    def close(self) -> None:
        """Waits for pending writes and closes the checkpoints."""
        self.manager.close()

    def remove(self) -> None:
        """Removes all checkpoints of a training."""
        self.manager.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check(self, held: Mapping[str, Any]) -> None:
        for name in sorted({*held, *self.settings}):
            theirs, ours = held.get(name), self.settings.get(name)
            if theirs != ours:
                raise ValueError(
                    f"{self.folder}: expected a checkpoint with {name} = {ours!r}, got one with "
                    f"{theirs!r}; give the same options, or another folder by --checkpoints"
                )


def _named(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a pytree by their paths."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
