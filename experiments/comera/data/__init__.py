"""Data sets of the experiment `comera`, one module each: NumPy arrays, no network.

`flights`, `code` and `pairs` need nothing but installed packages; `criteo`, `codesearchnet` and
`mnli` read files as their authors publish them. Every ``load`` is deterministic given its
options, and keeps what it prepared in the folder ``cache`` if it is given one.
"""
