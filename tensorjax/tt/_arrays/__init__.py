"""NumPy-like operations on trains: indexing, reshaping, permuting, reductions, extrema."""
