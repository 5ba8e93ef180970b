"""Executes notebooks and keeps the last figure of each for the gallery.

Run `python docs/notebook_figures.py [NAMES]` from the root of the repository (extra dev) after a
notebook has changed; all together take about ten minutes. Nothing else is kept of the outputs.
"""

import base64
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "_static" / "notebooks"


def figures(notebook: Path) -> list[bytes]:
    """Returns the pictures that a notebook draws, as PNG files."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / notebook.name
        command = [sys.executable, "-m", "jupyter", "execute", f"--output={output}", str(notebook)]
        subprocess.run(command, check=True, timeout=900, stdin=subprocess.DEVNULL)
        cells = json.loads(output.read_text("utf-8"))["cells"]
    shown = [o.get("data", {}) for cell in cells for o in cell.get("outputs", [])]
    return [base64.b64decode("".join(d["image/png"])) for d in shown if "image/png" in d]


def main(names: list[str]) -> None:
    """Writes the last figure of every notebook that draws one."""
    FOLDER.mkdir(exist_ok=True)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        drawn = figures(path)
        if drawn:
            picture = Image.open(io.BytesIO(drawn[-1])).convert("RGB")
            picture.quantize(128).save(FOLDER / f"{path.stem}.png", optimize=True)
        print(f"{path.stem}: {len(drawn)} figures", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
