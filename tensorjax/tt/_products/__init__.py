"""Products of tensor trains: entry by entry, with TT-matrices, inner products and forms."""
