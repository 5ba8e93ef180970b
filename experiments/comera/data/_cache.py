"""Cache of prepared data, keyed by the sources in this folder too."""

import functools
from pathlib import Path

from experiments._texts import cache
from experiments._texts.cache import stamp

__all__ = ["cached", "stamp"]

cached = functools.partial(cache.cached, programs=sorted(Path(__file__).parent.glob("*.py")))
