"""Values of vector fields and sources remembered for the last coordinate maps."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax.pde._maps.affine_maps import AffineMap


class Remembered:
    """Cache of results for the last few maps.

    Results depend on the map, the box and the tolerance alone, so that a run and its continuation
    get equal ones. A map at rest is requested again and again.
    """

    def __init__(self, name: str, count: int = 8):
        self._name, self._count = name, count
        self._known: dict[Any, Any] = {}

    def get(self, map: AffineMap, box: Hashable, tol: float, make: Callable[[], Any]) -> Any:
        """Returns the cached result for an affine map, box and tolerance, or makes it."""
        if _check.is_traced(map):
            raise TypeError(
                f"{self._name}: expected a concrete map, got a traced one: this is brought into a "
                "train by cross approximation, outside jit, vmap and grad; there use Sin or Power"
            )
        key = np.asarray(map.matrix).tobytes(), np.asarray(map.shift).tobytes(), box, tol
        if key not in self._known:
            while len(self._known) >= self._count:
                self._known.pop(next(iter(self._known)))
            self._known[key] = make()
        return self._known[key]
