"""Inner products, norms and distances of trains, and bilinear forms of a TT-matrix."""
