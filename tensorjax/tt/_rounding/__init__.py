"""Rounding of tensor trains, and of sums and products of trains without materialising them."""
