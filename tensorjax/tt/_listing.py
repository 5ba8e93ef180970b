"""Names of a package: `dir` lists all public ones, `help` those that its docstring leaves out.

`help` of a package prints the whole documentation of every class and function in it, thousands of
lines. Where the docstring is a table of all names by task, that table is what it should print.
"""

import re
import sys
from collections.abc import Callable, Sequence
from types import FrameType


def names(package: str, public: Sequence[str]) -> Callable[[], list[str]]:
    """Returns the ``__dir__`` of a package of so many public names."""

    def listed() -> list[str]:
        if not _asked_by_help():
            return list(public)
        told = set(re.findall(r"\w+", sys.modules[package].__doc__ or ""))
        return [name for name in public if name not in told]

    return listed


def _asked_by_help() -> bool:
    """Whether `pydoc` collects the members of a module, by `inspect.getmembers`, which uses `dir`.

    The module has no other way to tell it which ones to print: `__all__` names all that is public.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == "pydoc":
            return True
        frame = frame.f_back
    return False
