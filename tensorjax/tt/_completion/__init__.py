"""Tensor completion: tensor trains from samples of their entries."""
