"""Cross approximation: trains from entries of a function."""
