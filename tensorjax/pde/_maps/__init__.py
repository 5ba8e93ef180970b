"""Coordinate maps: affine, by flows of vector fields, and their motion in time."""
