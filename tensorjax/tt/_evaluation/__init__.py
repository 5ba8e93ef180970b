"""Entries of tensor trains at multi-indices, and contracted modes, by JAX programs or NumPy."""
