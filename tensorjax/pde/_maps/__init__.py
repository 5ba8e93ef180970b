"""Coordinate maps: affine ones, their motion in time, and paths of points."""
