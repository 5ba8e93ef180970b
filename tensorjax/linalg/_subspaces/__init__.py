"""Leading singular subspaces: from an SVD, a Gram matrix or a random sketch."""
