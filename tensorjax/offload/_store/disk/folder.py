"""Folder of a store: paths, file lock, file-system checks, and recovery of the index."""

import contextlib
import errno
import fcntl
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tensorjax.offload._errors import (
    FULL,
    CapacityError,
    CorruptError,
    LockedError,
    MismatchError,
)
from tensorjax.offload._store.disk import index as _index
from tensorjax.offload._store.disk import metadata
from tensorjax.offload._store.disk.extents import listed

_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks and the like in mount points, see proc(5)
_HELD = (errno.EWOULDBLOCK, errno.EACCES)  # of a lock that somebody has
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre",
            "beegfs", "gpfs", "ocfs2", "orangefs", "virtiofs", "fuse.sshfs", "fuse.s3fs",
            "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.cephfs",
            "fuse.ceph-fuse", "fuse.lustre"}  # fmt: skip


@dataclass(frozen=True)
class Paths:
    """Paths of one process's files in a store's folder: data, index and copies, names, lock.

    Attributes:
        folder: Of the store.
        process: Number of the process and count of processes.
        data: The data file, which holds the tensors.
        index: The index, which describes the committed state.
        copy: Its second copy, which stands in if a bit of the first one flips.
        before: The index of the commit before.
        prepared: The next index, in a commit of several processes that is not complete.
        names: The list of tensor names, for messages when the index is lost.
        lock: The lock file, held by the process that has the store open.
    """

    folder: Path
    process: tuple[int, int]
    data: Path = field(init=False)
    index: Path = field(init=False)
    copy: Path = field(init=False)
    before: Path = field(init=False)
    prepared: Path = field(init=False)
    names: Path = field(init=False)
    lock: Path = field(init=False)

    def __post_init__(self) -> None:
        number, count = self.process
        for what in [f.name for f in fields(self) if not f.init]:
            path = self.folder / f"{what}-{number:05d}-of-{count:05d}"
            object.__setattr__(self, what, path)


@dataclass(frozen=True)
class Lock:
    """File lock (flock) by which one process at a time has a store open.

    Attributes:
        descriptor: What holds it.
        owner: The process that took it; one that was forked from it has the descriptor too.
    """

    descriptor: int
    owner: int

    def release(self) -> None:
        """Releases the file lock of a store; in a forked process only closes its descriptor."""
        if self.owner == os.getpid():
            with contextlib.suppress(OSError):  # where locks do not work
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


def lock(path: Path, say: Callable[[str], None]) -> Lock:
    """Locks a store's folder for this process; only warns where files cannot be locked.

    The kernel lets go of it when the process ends, however it ends.

    Raises:
        LockedError: if another process, or another store of this one, has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _HELD:
            say(
                f"{path.parent}: files cannot be locked here ({error.strerror}): see to it that no "
                "other process opens the store meanwhile, or choose a folder on a local disk"
            )
            return Lock(descriptor, os.getpid())
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise LockedError(
            f"{path.parent}: the store is open already, by process {holder}; close it there, or "
            "give each process of a sharded training its own number, process=(number, count)"
        ) from error
    with contextlib.suppress(OSError):  # only for a message; what needs a disk that is full says so
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return Lock(descriptor, os.getpid())


def make(folder: Path) -> None:
    """Creates the folder of a store if it is missing.

    Raises:
        CapacityError: if the disk has no room for one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise CapacityError(
            f"{folder}: the disk is full, there is no room for a folder ({error.strerror}); free "
            "some space and try again"
        ) from error


def file_system(path: Path) -> str:
    """Returns the type of the file system that holds a store's folder; empty if unknown."""
    try:
        text = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    except OSError:
        return ""
    path, best, found = path.resolve(), -1, ""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        mount = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), left.split(" ")[4])
        if len(mount) >= best and path.is_relative_to(mount):
            best, found = len(mount), right.split(" ")[0]
    return found


def advice(path: Path) -> str:
    """Returns a warning if a store's folder is in memory or on a network; empty otherwise."""
    kind = file_system(path)
    if kind in _IN_MEMORY:
        return (
            f"{path} is on {kind}, which is memory: nothing is offloaded, and all is lost when the "
            "machine stops; choose a folder on a disk"
        )
    if kind in _NETWORK:
        return (
            f"{path} is on {kind}, a network file system: expect the speed of the network, and "
            "locks and syncs that may not hold; choose a folder on a local disk"
        )
    return ""


def keep_names(paths: Paths, index: _index.Index) -> None:
    """Rewrites a store folder's file of tensor names if it differs from the committed index."""
    wanted = _index.names_of(index.places.values())
    if not paths.names.exists() or paths.names.read_bytes() != wanted:
        _index.replace(paths.names, wanted)


def prepare(paths: Paths, index: _index.Index) -> list[Path]:
    """Writes the next index and its copy beside those in a store's folder, for `adopt` to rename.

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
    """Replaces the index of a store's folder by a prepared one; keeps the previous index.

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
    """Commits what a store's folder holds: syncs the data file, then replaces the index.

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
    """Returns a store's capacity in bytes; raises CapacityError if its index needs more.

    Raises:
        ValueError: if none is given for a new store.
        CapacityError: if it is below what the store holds.
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
    """Loads a store's committed index, restored if damaged; None for a new store.

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
    wrong = metadata.differences("process", list(index.process), list(paths.process))
    if model is not None:
        wrong += metadata.differences("model", index.model, model)
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
    """Restores a store's lost or damaged index file from its copy or predecessor."""
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
    """Completes or undoes an interrupted commit of several processes to a store's index.

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
    """Reads the names of tensors kept in a store's folder, for errors about a lost index."""
    try:
        found = json.loads(paths.names.read_bytes())
    except (OSError, ValueError):
        return []
    return [str(name) for name in found] if isinstance(found, list) else []
