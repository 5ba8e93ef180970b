"""Generators of coordinate motion: choice of coordinates in which TT-ranks stay low."""
