"""Tensorised layers in a parameter tree, and the paths of its leaves."""
