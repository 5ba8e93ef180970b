"""Rounding of trains, and of sums and products of trains without materialising them."""
