"""What is finished stays finished: one file of JSON a training, under a name its settings give."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments._results import plain, write_atomically

# A training is done again when one of these has changed; figures and tables are free to change.
_SOURCES = ("methods.py", "ordering.py", "pruning.py", "sizes.py", "tasks.py", "training.py")


class Store:
    """Results by their settings, in a folder that outlives the run.

    Attributes:
        folder: Where the files lie. Deleting it forgets everything.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, settings: Mapping[str, Any], ending: str = ".json") -> Path:
        """The file, or the folder of checkpoints, of a training."""
        return self.folder / f"{digest(settings)}{ending}"

    def get(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result of a training with these settings, or None if it must be done."""
        path = self.path(settings)
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError):  # absent, or damaged: either way it is done again
            return None
        return found["result"] if found.get("settings") == plain(settings) else None

    def put(self, settings: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Keeps a result: the whole file, or none."""
        content = {"settings": plain(settings), "result": plain(result)}
        write_atomically(self.path(settings), json.dumps(content, allow_nan=False) + "\n")


def digest(settings: Mapping[str, Any]) -> str:
    """The name of a training: of its settings and of the sources that its result depends on."""
    text = json.dumps(plain(settings), sort_keys=True, allow_nan=False)
    found = hashlib.sha256(text.encode())
    for name in _SOURCES:
        found.update(Path(__file__).with_name(name).read_bytes())
    return found.hexdigest()[:20]
