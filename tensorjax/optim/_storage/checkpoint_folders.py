"""Folders of checkpoints: replaced as a whole, recognised, and verified by checksums."""

import json
import logging
import shutil
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import jax
from jax.experimental import multihost_utils

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
    strange = sorted(x.name for x in place.iterdir() if not _is_part(x.name))
    if strange or (any(place.iterdir()) and not (place / _METADATA).exists()):
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


def _is_part(name: str) -> bool:
    return name in _OF_ORBAX or name.startswith("ocdbt.process_")


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
