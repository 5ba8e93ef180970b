"""Rank cuts to a target size under jit: order of cuts, change of basis, update."""
