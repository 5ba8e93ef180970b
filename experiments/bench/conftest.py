"""Doctests leave out what needs a peer that is not installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["_torch_decoder.py"]
