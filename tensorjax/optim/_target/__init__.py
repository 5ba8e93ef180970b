"""Rank cuts to a target size within jit: schedule, order of cuts, change of basis, update."""
