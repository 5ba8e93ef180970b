"""Index file of a store: contents, format, atomic commits, recovery after an interrupted one."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

import numpy as np

from tensorjax.offload._errors import FULL, CapacityError, CorruptError, MismatchError, listed
from tensorjax.offload._store.disk.checksums import LENGTH, digest
from tensorjax.offload._store.disk.extents import ALIGN, Place
from tensorjax.offload._store.disk.folder import Paths

FORMAT = "tensorjax-store"
VERSION = 2
_READ = ("1", "2")  # in the first one no tensors shared a block


def differences(kind: str, stored: Any, asked: Any) -> list[str]:
    """Lists, as text, fields in which requested metadata differ from those of a store's index."""
    if isinstance(stored, dict) and isinstance(asked, dict):
        return [
            line
            for name in sorted({*stored, *asked}, key=str)
            for line in differences(
                f"{kind}.{name}", stored.get(name, _MISSING), asked.get(name, _MISSING)
            )
        ]
    same = stored == asked and isinstance(stored, bool) == isinstance(asked, bool)
    return [] if same else [f"{kind}: the store has {stored!r}, asked for {asked!r}"]


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()


def plain(name: str, value: Any) -> Any:
    """Converts metadata for the index to plain JSON values; TypeError if JSON cannot hold them."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"{name}: expected what JSON can hold (numbers, strings, lists, dicts), got "
            f"{type(value).__name__}: {error}; convert arrays with .tolist() or store them as "
            "tensors, dataclasses with dataclasses.asdict"
        ) from None


@dataclass(slots=True, eq=False)
class Entry:
    """Index entry of a tensor on disk: which of its two copies is valid, and its checksums.

    Attributes:
        slot: 0 or 1.
        sums: Checksums of its blocks, in hexadecimal.
    """

    slot: int
    sums: list[str]


@dataclass(frozen=True)
class Index:
    """Contents of a store's index file: positions and checksums of all tensors, and metadata.

    Attributes:
        process: Number of the process and count of processes.
        model: What the store belongs to, as JSON.
        block: Bytes that one checksum covers.
        places: Of all tensors that were reserved.
        entries: Of those that were written and committed.
        commit: How many commits there were.
        joint: How many of them with other processes: the same number in all of these.
        meta: What the caller committed with the tensors, as JSON.
        version: Of the format; a store keeps its own until tensors of it share blocks.
    """

    process: tuple[int, int]
    model: Any
    block: int
    places: Mapping[str, Place] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    commit: int = 0
    joint: int = 0
    meta: Any = None
    version: int = VERSION

    @property
    def end(self) -> int:
        """Number of bytes of the data file that a store's index reserves for tensors."""
        return max((place.stop for place in self.places.values()), default=0)

    def including(self, places: Iterable[Place]) -> "Index":
        """Returns a copy of a tensor store's index with further tensors reserved in it."""
        places = tuple(places)
        shared = any(place.offsets[0] % ALIGN for place in places)
        return replace_fields(
            self,
            places={**self.places, **{place.name: place for place in places}},
            version=VERSION if shared else self.version,
        )

    def after(self, entries: Mapping[str, Entry], meta: Any, *, joint: bool) -> "Index":
        """Returns the index that a store's next commit writes, from tensor entries and metadata.

        ``joint`` says whether it is made together with other processes.
        """
        return replace_fields(
            self, entries=entries, commit=self.commit + 1, joint=self.joint + joint, meta=meta
        )


def dump(index: Index) -> bytes:
    """Serialises a tensor store's index to the bytes of its file."""
    head = json.dumps(
        {
            "process": index.process,
            "model": index.model,
            "block": index.block,
            "commit": index.commit,
            "joint": index.joint,
            "meta": index.meta,
        },
        separators=(",", ":"),
    )
    entries = index.entries
    tensors = ",".join(
        [
            place.entry + ("}" if (entry := entries.get(name)) is None else _written(entry))
            for name, place in index.places.items()
        ]
    )
    body = f'{head[:-1]},"tensors":{{{tensors}}}}}'.encode()
    version = str(index.version)
    return f"{FORMAT} {version} {_checksum(version, body)}\n".encode() + body


def _checksum(version: str, body: bytes) -> str:
    return digest(body if version == "1" else f"{version} ".encode() + body)


def _written(entry: Entry) -> str:
    return f',"slot":{entry.slot},"sums":"{"".join(entry.sums)}"}}'


def parse(text: bytes, path: Path) -> Index:
    """Parses a store's index file; raises an error if format, version or checksum are wrong."""
    head, _, body = text.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if len(words) != 3 or words[0] != FORMAT:
        raise CorruptError(f"{path}: expected an index of a tensorjax store, got {head[:40]!r}")
    if words[1] not in _READ:
        raise MismatchError(
            f"{path}: expected format version {' or '.join(_READ)}, got {words[1]}; "
            "open it with the release of tensorjax that wrote it, or, if none did, restore the "
            "folder from a copy"
        )
    if words[2] != _checksum(words[1], body):
        raise CorruptError(
            f"{path}: the checksum of the index is wrong, so no tensor can be trusted; "
            "restore the folder from a copy, or remove it and start again"
        )
    data = json.loads(body)
    places, entries = {}, {}
    for name, facts in data["tensors"].items():
        places[name] = Place(
            name, tuple(facts["shape"]), np.dtype(facts["dtype"]), tuple(facts["offsets"])
        )
        if "slot" in facts:
            sums = [facts["sums"][i : i + LENGTH] for i in range(0, len(facts["sums"]), LENGTH)]
            entries[name] = Entry(facts["slot"], sums)
    return Index(
        process=tuple(data["process"]),
        model=data["model"],
        block=data["block"],
        places=places,
        entries=entries,
        commit=data["commit"],
        joint=data.get("joint", data["commit"]),  # which older ones counted together
        meta=data["meta"],
        version=int(words[1]),
    )


def replace(path: Path, content: bytes) -> None:
    """Replaces an index file atomically, so that a crash leaves the old or the new one."""
    rename(write_new(path, content), path)


def write_new(path: Path, content: bytes) -> Path:
    """Writes and syncs a temporary file that is to replace an index file; returns its path.

    Raises:
        CapacityError: if the disk is full; the file is as it was, and nothing is left beside it.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno not in FULL:
            raise
        disk = os.statvfs(path.parent)
        raise CapacityError(
            f"{path}: the disk is full: {len(content)} bytes are to be written beside it, "
            f"{disk.f_bavail * disk.f_frsize} are free ({os.strerror(error.errno or 0)}); what was "
            "committed stays in place; free some space and try again"
        ) from error
    return temporary


def rename(before: Path, after: Path) -> None:
    """Renames an index file and syncs the folder, so that the new name survives a crash."""
    os.rename(before, after)
    sync_folder(after.parent)


def sync_folder(folder: Path) -> None:
    """Syncs the folder of an index, so that renamed files in it keep their names after a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def names_of(places: Iterable[Place]) -> bytes:
    """Serialises tensor names for the file beside the index, which tells what a lost index held."""
    return json.dumps([place.name for place in places]).encode()


def keep_names(paths: Paths, index: Index) -> None:
    """Rewrites a store's file of tensor names if it differs from the last commit of the index."""
    wanted = names_of(index.places.values())
    if not paths.names.exists() or paths.names.read_bytes() != wanted:
        replace(paths.names, wanted)


def prepare(paths: Paths, index: Index) -> list[Path]:
    """Prepares a commit: writes a store's next index to temporary files, for `adopt` to rename.

    Raises:
        CapacityError: if the disk is full; nothing is left.
    """
    content = dump(index)
    fresh = write_new(paths.index, content)
    try:
        return [fresh, write_new(paths.copy, content)]
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
    rename(fresh, paths.index)


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
        rename(index, paths.prepared)
        barrier()  # from here on every process can go on to the new state
        index = paths.prepared
    adopt(paths, index, copy)


def checked_capacity(paths: Paths, index: Index | None, capacity: int | None) -> int:
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
    if index.version < VERSION:
        return max(capacity, index.end)  # small tensors took more room then
    if index.end > capacity:
        raise CapacityError(
            f"{paths.folder}: capacity: the store takes {index.end} bytes already, got "
            f"{capacity}; pass at least that"
        )
    return capacity


def load(paths: Paths, model: Any, say: Callable[[str], None]) -> Index | None:
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
        index = parse(paths.index.read_bytes(), paths.index)
    except FileNotFoundError:
        raise CorruptError(_lost(paths), _names(paths)) from None
    except (CorruptError, MismatchError) as error:
        if names := _names(paths):
            said = f"{error}; the store has the tensors {listed(names)}"
            raise type(error)(said, names) from None
        raise
    wrong = differences("process", list(index.process), list(paths.process))
    if model is not None:
        wrong += differences("model", index.model, model)
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
        parse(content, paths.index)
    except (OSError, CorruptError, MismatchError) as error:
        # A commit of several processes holds for all of them: none goes back by itself.
        for path in [paths.copy, paths.before][: 2 if paths.process[1] == 1 else 1]:
            try:
                content = path.read_bytes()
                index = parse(content, path)
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
        replace(paths.index, content)
    if not paths.copy.exists() or paths.copy.read_bytes() != content:
        replace(paths.copy, content)


def _settle(paths: Paths) -> None:
    """Completes or undoes an interrupted commit of several processes to a tensor store's index.

    A process goes forward only after all have prepared their index. So if one has, the others can
    follow it; if none has, all go back.
    """
    if not paths.prepared.exists():
        return
    prepared = parse(paths.prepared.read_bytes(), paths.prepared).joint
    own = parse(paths.index.read_bytes(), paths.index).joint
    count = paths.process[1]
    others = [Paths(paths.folder, (number, count)).index for number in range(count)]
    reached = [parse(p.read_bytes(), p).joint for p in others if p.exists()]
    if len(reached) < count:
        raise CorruptError(
            f"{paths.prepared}: a commit of {count} processes was cut off, and the indices of "
            f"{count - len(reached)} of them are not in the folder, so it cannot be known which "
            "state holds; bring them there"
        )
    if max(reached) >= prepared > own:
        rename(paths.prepared, paths.index)
    else:
        paths.prepared.unlink()
        sync_folder(paths.folder)


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
