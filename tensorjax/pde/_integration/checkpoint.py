"""Checkpoints: states saved to a folder by orbax, and restored bit for bit."""

import os
import pathlib
import shutil
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TT
from tensorjax._typing import Path
from tensorjax.pde._integration.solution import State
from tensorjax.pde._maps.affine_maps import AffineMap


class Checkpoint(NamedTuple):
    """Options for checkpoints of a time integration: folder, interval, number of states kept.

    Attributes:
      folder: a directory; created if missing. The newest state is in the last ``step_N``. It may
        hold states only if the run starts from the newest of them: others are of another run.
      every: accepted steps between two saved states; one is saved at the end anyway.
      keep: number of this run's states that are kept.

    Example:
      >>> from tensorjax import pde
      >>> pde.Checkpoint("runs/first").keep        # for pde.integrate(..., checkpoint=...)
      2
    """

    folder: Any
    every: int = 100
    keep: int = 2


def save(folder: Path, state: State) -> pathlib.Path:
    """Saves a state of a time integration as a checkpoint ``folder/step_N``.

    N is the number of steps, or, for a state without memory, the next free number.

    Args:
      folder: a directory; created if missing.
      state: as in `Solution.ys`.

    Returns:
      The path written; an existing one is replaced once the new one is complete, so that a save
      which is interrupted loses neither.

    Raises:
      ImportError: orbax is not installed.

    Example:
      >>> import tempfile
      >>> from tensorjax import pde, tt
      >>> state = pde.State(tt.ones((8, 8)), pde.AffineMap.identity(2), 0.5)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     pde.save(folder, state).name
      'step_0'

    Source: ours; the format is that of Orbax.
    """
    tree: dict[str, Any] = {
        "map": {"matrix": np.asarray(state.map.matrix), "shift": np.asarray(state.map.shift)},
        "t": np.asarray(float(state.t)),
        "cores": {str(k): np.asarray(c) for k, c in enumerate(state.v.cores)},
    }
    if state.memory is not None:
        tree["memory"] = {k: np.asarray(a) for k, a in state.memory.items()}
    folder = pathlib.Path(folder).absolute()
    if state.memory is None:
        known = _saved(folder)
        number = _number(known[-1]) + 1 if known else 0
    else:
        number = int(state.memory["steps"])
    path = folder / f"step_{number}"
    folder.mkdir(parents=True, exist_ok=True)
    new, old = _beside(path, "new"), _beside(path, "old")
    with _orbax().Checkpointer(_orbax().PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(new, tree, force=True)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    return path


def load(folder: Path) -> State:
    """Loads the newest checkpoint of a time integration from a folder.

    Args:
      folder: the directory given to `integrate`, or one ``step_N`` in it.

    Returns:
      `State`, for ``integrate(…, start=…)``.

    Raises:
      ImportError: orbax is not installed.
      FileNotFoundError: there is no state.

    Example:
      >>> import tempfile
      >>> from tensorjax import pde, tt
      >>> state = pde.State(tt.ones((8, 8)), pde.AffineMap.identity(2), 0.5)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pde.save(folder, state)
      ...     pde.load(folder).t
      0.5

    Source: ours; the format is that of Orbax.
    """
    folder = pathlib.Path(folder).absolute()
    found = [folder] if folder.name.startswith("step_") else _saved(folder)
    if found and not found[-1].is_dir():  # a save was interrupted between two renames
        found = [_beside(found[-1], "old")]
    if not found or not found[-1].is_dir():
        raise FileNotFoundError(f"folder: expected states step_N saved in {folder}, got none")
    with _orbax().Checkpointer(_orbax().PyTreeCheckpointHandler()) as checkpointer:
        tree = checkpointer.restore(found[-1])
    cores = tuple(tree["cores"][str(k)] for k in range(len(tree["cores"])))
    memory = tree.get("memory")
    memory = None if memory is None else {k: np.asarray(a) for k, a in memory.items()}
    at = AffineMap(np.asarray(tree["map"]["matrix"]), np.asarray(tree["map"]["shift"]))
    return State(TT([jnp.asarray(c) for c in cores]), at, float(tree["t"]), memory)


def _saved(folder: pathlib.Path) -> list[pathlib.Path]:
    """Lists the checkpoints in a folder, also one whose replacement was interrupted."""
    names = {p.name for p in folder.glob("step_*")}
    names |= {p.name[1:-4] for p in folder.glob(".step_*.old")}
    return sorted((folder / n for n in names if n[5:].isdigit()), key=_number)


def _beside(path: pathlib.Path, suffix: str) -> pathlib.Path:
    """Returns a hidden file name beside a checkpoint, for its atomic replacement."""
    return path.with_name(f".{path.name}.{suffix}")


def _number(path: pathlib.Path) -> int:
    return int(path.name[5:])


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(
            "checkpoints need orbax: install it with pip install 'tensorjax[nn]'"
        ) from error
    return ocp


class _Saver:
    """Writer of a time integration's checkpoints, which removes old ones.

    Raises:
      ValueError: the folder holds states of another run.
    """

    def __init__(self, options: Checkpoint, start: State | None):
        self._options = options
        self._last = -1
        _orbax()
        self._paths = _saved(pathlib.Path(options.folder).absolute())
        if self._paths and not (start is not None and _same(load(self._paths[-1]), start)):
            raise ValueError(
                "checkpoint: expected a folder without states of another run, got "
                f"{options.folder} with {self._paths[-1].name}; take another folder, remove its "
                "states, or go on with start=pde.load(folder)"
            )

    def after(self, work: Any) -> None:
        """Saves a checkpoint if one is due; called after every time step."""
        if work.memory.steps % self._options.every == 0:
            self._save(work)

    def close(self, work: Any) -> None:
        """Saves the last state as a checkpoint, unless already saved, at the end of a run."""
        if work.memory.steps != self._last:
            self._save(work)

    def _save(self, work: Any) -> None:
        path = save(self._options.folder, work.state())
        self._last = work.memory.steps
        self._paths = [p for p in self._paths if p != path] + [path]
        while len(self._paths) > self._options.keep:
            path = self._paths.pop(0)
            for place in (path, _beside(path, "old")):
                shutil.rmtree(place, ignore_errors=True)


class _Nothing:
    def after(self, work: Any) -> None:
        pass

    def close(self, work: Any) -> None:
        pass


def _same(a: State, b: State) -> bool:
    """Whether two checkpoints hold bitwise equal states, so that a run may continue from one."""
    if (a.memory is None) != (b.memory is None) or float(a.t) != float(b.t):
        return False
    first, second = (
        {
            "matrix": s.map.matrix,
            "shift": s.map.shift,
            **dict(enumerate(s.v.cores)),
            **(s.memory or {}),
        }
        for s in (a, b)
    )
    return first.keys() == second.keys() and all(
        np.array_equal(np.asarray(first[k]), np.asarray(second[k])) for k in first
    )


def checkpointer(checkpoint: Any, start: State | None) -> _Saver | _Nothing:
    """Returns the checkpoint writer of a time integration, one that does nothing for None."""
    if checkpoint is None:
        return _Nothing()
    if not isinstance(checkpoint, Checkpoint):
        if not isinstance(checkpoint, str | os.PathLike):
            got = _check.short(checkpoint)
            raise TypeError(f"checkpoint: expected a folder or a Checkpoint, got {got}")
        checkpoint = Checkpoint(checkpoint)
    _check.integer("checkpoint.every", checkpoint.every, low=1)
    _check.integer("checkpoint.keep", checkpoint.keep, low=1)
    return _Saver(checkpoint, start)
