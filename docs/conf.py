"""Settings of the site, `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

project = "tensorjax"
author = "the tensorjax developers"
copyright = author
extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.bibtex",
    "api",
    "drawn",
    "pages",
]
bibtex_bibfiles = ["references.bib"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3
# Docstrings and notebooks may skip a level of headings, and show output that is no Python.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
exclude_patterns = ["_build", "_ext"]
html_theme = "pydata_sphinx_theme"
html_title = "tensorjax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "search.js")
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
# Pages without a section of their own have no navigation at the left.
html_sidebars: dict[str, list[str]] = {"*": [], "generated/changelog": [], "changes": []}
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 6,
}
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
smartquotes = False  # values of arguments are quoted
toc_object_entries_show_parents = "hide"
