"""The cache of prepared data, which depend on the modules of this folder."""

import functools
from pathlib import Path

from experiments._texts import cache
from experiments._texts.cache import stamp

__all__ = ["cached", "stamp"]

cached = functools.partial(cache.cached, programs=sorted(Path(__file__).parent.glob("*.py")))
