"""Trains of functions on boxes, from values at selected points."""
