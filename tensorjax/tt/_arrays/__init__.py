"""NumPy-like operations on tensor trains: indexing, reshaping, permuting, reductions, extrema."""
