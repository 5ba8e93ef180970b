"""Generators of coordinate motion: forms of the right side's normal component."""
