"""Store of finished trainings: one JSON file each, named by a digest of its settings."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments._results import plain, write_atomically

# A training is done again when one of these has changed; figures and tables are free to change.
_SOURCES = ("methods.py", "ordering.py", "pruning.py", "sizes.py", "tasks.py", "training.py")


class Store:
    """Store of training results by their settings, in a folder that outlives a run.

    Attributes:
        folder: Where the files lie. Deleting it forgets everything.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, settings: Mapping[str, Any], ending: str = ".json") -> Path:
        """Returns the path of a training's result file or checkpoint folder."""
        return self.folder / f"{digest(settings)}{ending}"

    def get(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the stored result of a training with these settings, or None."""
        path = self.path(settings)
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError):  # absent, or damaged: either way it is done again
            return None
        return found["result"] if found.get("settings") == plain(settings) else None

    def put(self, settings: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Stores the result of a training in a file, whole or not at all."""
        content = {"settings": plain(settings), "result": plain(result)}
        write_atomically(self.path(settings), json.dumps(content, allow_nan=False) + "\n")


def digest(settings: Mapping[str, Any]) -> str:
    """Returns a digest of a training's settings and of the sources its result depends on."""
    text = json.dumps(plain(settings), sort_keys=True, allow_nan=False)
    found = hashlib.sha256(text.encode())
    for name in _SOURCES:
        found.update(Path(__file__).with_name(name).read_bytes())
    return found.hexdigest()[:20]
