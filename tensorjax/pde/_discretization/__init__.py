"""Boxes of collocation points, and differential operators on them as TT-matrices."""
