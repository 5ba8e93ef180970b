"""Commits of a store's index: preparation, replacement, recovery after an interrupted one."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorjax.offload._errors import CapacityError, CorruptError, MismatchError, listed
from tensorjax.offload._store.disk import index as _index
from tensorjax.offload._store.disk.folder import Paths


def keep_names(paths: Paths, index: _index.Index) -> None:
    """Rewrites a store's file of tensor names if it differs from the last commit of the index."""
    wanted = _index.names_of(index.places.values())
    if not paths.names.exists() or paths.names.read_bytes() != wanted:
        _index.replace(paths.names, wanted)


def prepare(paths: Paths, index: _index.Index) -> list[Path]:
    """Prepares a commit: writes a store's next index to temporary files, for `adopt` to rename.

    Raises:
        CapacityError: if the disk is full; nothing is left.
    """
    content = _index.dump(index)
    fresh = _index.prepare(paths.index, content)
    try:
        return [fresh, _index.prepare(paths.copy, content)]
    except BaseException:
        fresh.unlink()
        raise


def adopt(paths: Paths, fresh: Path, copy: Path) -> None:
    """Completes a prepared commit: replaces a store's index, and keeps the previous one.

    The copy is replaced first: it is never older than the index. Nothing is ever missing.
    """
    if paths.index.exists():
        link = paths.before.with_name(paths.before.name + ".new")
        link.unlink(missing_ok=True)
        try:
            os.link(paths.index, link)
        except OSError:  # a file system without hard links
            link.write_bytes(paths.index.read_bytes())
        os.rename(link, paths.before)
    os.rename(copy, paths.copy)
    _index.rename(fresh, paths.index)


def commit(
    paths: Paths,
    fresh: Sequence[Path],
    sync: Callable[[], object],
    barrier: Callable[[], object] | None,
) -> None:
    """Commits what a tensor store's folder holds: syncs the data file, then replaces the index.

    ``fresh`` are the files of `prepare`, none for a store in memory; they are removed if ``sync``
    fails. ``barrier`` waits for the processes that commit together.
    """
    try:
        sync()
    except BaseException:
        for path in fresh:
            path.unlink()
        raise
    if not fresh:
        return
    index, copy = fresh
    if barrier is not None:
        _index.rename(index, paths.prepared)
        barrier()  # from here on every process can go on to the new state
        index = paths.prepared
    adopt(paths, index, copy)


def checked_capacity(paths: Paths, index: _index.Index | None, capacity: int | None) -> int:
    """Returns a store's capacity in bytes; CapacityError if its committed index needs more.

    Raises:
        ValueError: if none is given for a new store.
    """
    if index is None:
        if capacity is None:
            raise ValueError(
                f"capacity: expected bytes for the new store {paths.folder}, got None; "
                "offload.capacity says what tensors take"
            )
        return capacity
    if capacity is None:
        return max(1, index.end)
    if index.version < _index.VERSION:
        return max(capacity, index.end)  # small tensors took more room then
    if index.end > capacity:
        raise CapacityError(
            f"{paths.folder}: capacity: the store takes {index.end} bytes already, got "
            f"{capacity}; pass at least that"
        )
    return capacity


def load(paths: Paths, model: Any, say: Callable[[str], None]) -> _index.Index | None:
    """Loads a tensor store's committed index, restored if damaged; None for a new store.

    An index that is lost or changed is replaced by its copy, or, in a store of one process, by the
    one of the commit before, of which tensors that were written since are found out as they are
    read; ``say`` is told.

    Raises:
        CorruptError: if files are missing, cut or changed, the index with both that stand in.
        MismatchError: if the store is of another version, model or number of processes.
    """
    _same_count(paths)
    known = [paths.index, paths.copy, paths.before, paths.data, paths.names]
    if not any(path.exists() for path in known):
        return None
    try:
        _restore(paths, say)
        _settle(paths)
        index = _index.parse(paths.index.read_bytes(), paths.index)
    except FileNotFoundError:
        raise CorruptError(_lost(paths), _names(paths)) from None
    except (CorruptError, MismatchError) as error:
        if names := _names(paths):
            said = f"{error}; the store has the tensors {listed(names)}"
            raise type(error)(said, names) from None
        raise
    wrong = _index.differences("process", list(index.process), list(paths.process))
    if model is not None:
        wrong += _index.differences("model", index.model, model)
    if wrong:
        raise MismatchError(f"{paths.folder}: another store than the one asked for: "
                            + "; ".join(wrong))  # fmt: skip
    size = paths.data.stat().st_size if paths.data.exists() else 0
    cut = [
        name
        for name, entry in index.entries.items()
        if (place := index.places[name]).nbytes and place.offsets[entry.slot] + place.nbytes > size
    ]
    if cut:
        what = f"the file has {size} bytes, expected {index.end}; it was cut"
        if not paths.data.exists():
            what = "the file is missing"
        raise CorruptError(
            f"{paths.data}: {what}, and these tensors are lost: {listed(cut)}; restore the folder "
            "from a copy",
            cut,
        )
    return index


def _restore(paths: Paths, say: Callable[[str], None]) -> None:
    """Restores the last commit of a lost or damaged index from its copy or predecessor."""
    try:
        content = paths.index.read_bytes()
        _index.parse(content, paths.index)
    except (OSError, CorruptError, MismatchError) as error:
        # A commit of several processes holds for all of them: none goes back by itself.
        for path in [paths.copy, paths.before][: 2 if paths.process[1] == 1 else 1]:
            try:
                content = path.read_bytes()
                index = _index.parse(content, path)
            except (OSError, CorruptError, MismatchError):
                continue
            what = "its copy" if path == paths.copy else "the index of the commit before"
            say(
                f"{paths.index}: the index cannot be used ({error}); going on from {what}, which "
                f"is of commit {index.commit}; see to the disk"
            )
            break
        else:
            raise
        _index.replace(paths.index, content)
    if not paths.copy.exists() or paths.copy.read_bytes() != content:
        _index.replace(paths.copy, content)


def _settle(paths: Paths) -> None:
    """Completes or undoes an interrupted commit of several processes to a tensor store's index.

    A process goes forward only after all have prepared their index. So if one has, the others can
    follow it; if none has, all go back.
    """
    if not paths.prepared.exists():
        return
    prepared = _index.parse(paths.prepared.read_bytes(), paths.prepared).joint
    own = _index.parse(paths.index.read_bytes(), paths.index).joint
    count = paths.process[1]
    others = [Paths(paths.folder, (number, count)).index for number in range(count)]
    reached = [_index.parse(p.read_bytes(), p).joint for p in others if p.exists()]
    if len(reached) < count:
        raise CorruptError(
            f"{paths.prepared}: a commit of {count} processes was cut off, and the indices of "
            f"{count - len(reached)} of them are not in the folder, so it cannot be known which "
            "state holds; bring them there"
        )
    if max(reached) >= prepared > own:
        _index.rename(paths.prepared, paths.index)
    else:
        paths.prepared.unlink()
        _index.sync_folder(paths.folder)


def _same_count(paths: Paths) -> None:
    count = paths.process[1]
    found = [p for what in ("index", "data", "names") for p in paths.folder.glob(f"{what}-*-of-*")]
    others = {path.name.rpartition("-of-")[2] for path in found}
    wrong = sorted(int(other) for other in others if other.isdigit() and int(other) != count)
    if wrong:
        raise MismatchError(
            f"{paths.folder}: process: the store was written by {wrong[0]} processes, asked for "
            f"{count}; open it with as many, or read it whole by their stores and write a new one"
        )


def _lost(paths: Paths) -> str:
    names = _names(paths)
    whose = f"the tensors {listed(names)} cannot be found in it" if names else "it cannot be read"
    what = f"{paths.data} is there, but {whose}"
    if not paths.data.exists():
        what = f"{paths.data} is gone too, and with it the tensors {listed(names)}"
    return (
        f"{paths.index}: the index is lost; {what}; "
        "restore the folder from a copy, or remove it and start again"
    )


def _names(paths: Paths) -> list[str]:
    """Reads the tensor names that commits keep beside the index, for errors about a lost one."""
    try:
        found = json.loads(paths.names.read_bytes())
    except (OSError, ValueError):
        return []
    return [str(name) for name in found] if isinstance(found, list) else []
