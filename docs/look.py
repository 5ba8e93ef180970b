"""Looks at built pages in headless Chromium: messages on the console, pages wider than the window.

Run `python docs/look.py` after `make docs` for the site, or `python docs/look.py results` for the
report of the experiments, with `chromium`, `google-chrome` or
`chromium-headless-shell` on the path, or its path in CHROMIUM. Every page is laid out at the width
of a desktop and of a phone. The exit status is the number of pages with a fault; with `--optional`
it is 0 where there is no browser, which a line says.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote

SITE = Path(__file__).resolve().parent / "_build" / "html"
WIDTHS = (1280, 390)
# Messages of the site's theme about what it does.
THEME = ("[PST]", "Got invalid theme mode: . ")
BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome", "chromium-browser")
# A page that shows all others in a frame, one after the other, and writes down what it finds.
PROBE = """<!doctype html><body><pre id="found"></pre><script>
const pages = %s, widths = %s, found = [];
const frame = document.body.appendChild(document.createElement("iframe"));
frame.style.height = "900px";
function note(page, fault) { found.push([page, fault]); }
async function shown(page, width) {
  frame.style.width = width + "px";
  await new Promise(done => { frame.onload = done; frame.src = page; });
  const inside = frame.contentDocument;
  await new Promise(done => setTimeout(done, 20));
  const wide = inside.documentElement.scrollWidth;
  if (wide > width) note(page, `${wide} pixels wide in a window of ${width}`);
  for (const image of inside.images)
    if (image.complete && !image.naturalWidth)
      note(page, `no picture in ${image.getAttribute("src")}`);
}
(async () => {
  for (const page of pages) for (const width of widths) await shown(page, width);
  document.getElementById("found").textContent = JSON.stringify(found);
  document.title = "done";
})();
</script></body>"""


def browser() -> str | None:
    """Path of the browser, if there is one."""
    named = [os.environ.get("CHROMIUM"), *map(shutil.which, BROWSERS)]
    return next((path for path in named if path), None)


def missing(page: Path) -> list[str]:
    """Scripts, styles and images of a page that are not there: of files, no console tells."""
    tags = re.findall(r"<(?:script|link|img)\b[^>]*>", page.read_text("utf-8"))
    named = [m[1] for tag in tags if (m := re.search(r'\b(?:src|href)="([^"?#]+)', tag))]
    here = [unquote(name) for name in named if not re.match(r"\w+:|//", name)]
    return [name for name in here if not (page.parent / name).exists()]


def look(folder: Path) -> list[tuple[str, str]]:
    """Page and fault of every fault found in the pages of a folder."""
    files = sorted(p for p in folder.rglob("*.html") if "_static" not in p.parts)
    pages = [p.as_uri() for p in files]
    with tempfile.TemporaryDirectory() as scratch:
        probe = Path(scratch) / "probe.html"
        probe.write_text(PROBE % (json.dumps(pages), json.dumps(WIDTHS)), "utf-8")
        options = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-web-security"]
        options += ["--allow-file-access-from-files", "--enable-logging=stderr", "--dump-dom"]
        options += [f"--user-data-dir={scratch}/profile", "--virtual-time-budget=600000"]
        command = [browser() or "", *options, "--window-size=1400,1000", probe.as_uri()]
        run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = re.search(r'<pre id="found">(.+?)</pre>', run.stdout, re.DOTALL)
    if found is None:
        sys.exit(f"the browser did not finish: {run.stderr[-2000:]}")
    faults = [tuple(fault) for fault in json.loads(found[1].replace("&amp;", "&"))]
    faults += [(page.as_uri(), f"no file {name}") for page in files for name in missing(page)]
    # Any message but the theme's: a page of text has nothing to tell to the console.
    said = re.findall(r'CONSOLE[:(]\d+\)?\] "(.*?)", source: (\S*)', run.stderr, re.DOTALL)
    faults += [(source, text) for text, source in said if not text.startswith(THEME)]
    return list(dict.fromkeys(faults))


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--optional"]
    if browser() is None:
        print(f"no browser: install one of {', '.join(BROWSERS)}, or set CHROMIUM")
        print("the pages were not looked at")
        sys.exit("--optional" not in sys.argv)
    faults = look(Path(arguments[0]).resolve() if arguments else SITE)
    for page, fault in faults:
        print(f"{page.rpartition('/html/')[2]}: {fault}")
    print(f"{len(faults)} faults")
    sys.exit(min(len({page for page, _ in faults}), 100))
