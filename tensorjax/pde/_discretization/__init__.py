"""Collocation grids on boxes, and differential operators on them as TT-matrices."""
