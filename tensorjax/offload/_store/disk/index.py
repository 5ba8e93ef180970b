"""Index file with metadata, which describes the committed state and is replaced atomically."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

import numpy as np

from tensorjax.offload._errors import FULL, CapacityError, CorruptError, MismatchError
from tensorjax.offload._store.disk.checksums import LENGTH, digest
from tensorjax.offload._store.disk.extents import ALIGN, Place

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
        """Returns a store's index after its next commit, with given tensor entries and metadata.

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
    rename(prepare(path, content), path)


def prepare(path: Path, content: bytes) -> Path:
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
