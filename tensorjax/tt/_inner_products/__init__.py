"""Inner products of many trains at once, and bilinear forms of a TT-matrix."""
