"""Folder of a store: paths of its files, file lock, checks of the file system."""

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

from tensorjax.offload._errors import FULL, CapacityError, LockedError

_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks and the like in mount points, see proc(5)
_HELD = (errno.EWOULDBLOCK, errno.EACCES)  # of a lock that somebody has
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre",
            "beegfs", "gpfs", "ocfs2", "orangefs", "virtiofs", "fuse.sshfs", "fuse.s3fs",
            "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.cephfs",
            "fuse.ceph-fuse", "fuse.lustre"}  # fmt: skip


@dataclass(frozen=True)
class Paths:
    """Paths of one process's files in a tensor store's folder: data, index and copies, names, lock.

    Attributes:
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
    """Lock of a store's folder (flock), by which one process at a time has the store open.

    Attributes:
        owner: The process that took it; one that was forked from it has the descriptor too.
    """

    descriptor: int
    owner: int

    def release(self) -> None:
        """Releases the lock of a store's folder; in a forked process only closes its descriptor."""
        if self.owner == os.getpid():
            with contextlib.suppress(OSError):  # where locks do not work
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


def lock(path: Path, say: Callable[[str], None]) -> Lock:
    """Locks a tensor store's folder for this process; only warns where files cannot be locked.

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
    """Creates the folder of a tensor store if it is missing.

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
    """Returns the type of the file system that holds a tensor store's folder; empty if unknown."""
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
