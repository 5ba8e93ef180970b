"""Tensor completion: trains from samples of their entries."""
