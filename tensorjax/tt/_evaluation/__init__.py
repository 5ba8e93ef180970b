"""Entries of trains at multi-indices, and contracted modes, by programs or by NumPy."""
