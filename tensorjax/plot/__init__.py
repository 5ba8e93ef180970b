"""Drawings of networks, ranks, patches, densities, coordinates, memory, schedules and shards.

Every function draws into ``ax``, or into new axes without it, and returns the axes, so that titles,
limits and files stay the caller's: ``plot.network(t).figure.savefig("train.svg")``.

Example:
  >>> import matplotlib
  >>> matplotlib.use("Agg")
  >>> from tensorjax import plot, tt
  >>> ax = plot.network(tt.ones((2, 3, 4)))
  >>> ax.get_title()
  'TT, 9 entries'
"""

from tensorjax import _extras

with _extras.needed_by("tensorjax.plot"):
    from tensorjax.plot._memory_and_schedules import memory, schedule, shards
    from tensorjax.plot._networks import network
    from tensorjax.plot._pde_solutions import coordinates, history, marginal
    from tensorjax.plot._ranks_and_patches import patches, ranks, singular_values

__all__ = [
    "coordinates",
    "history",
    "marginal",
    "memory",
    "network",
    "patches",
    "ranks",
    "schedule",
    "shards",
    "singular_values",
]
__dir__ = __all__.copy  # for `dir`: the public names alone
