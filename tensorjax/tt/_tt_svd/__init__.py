"""TT-SVD: tensor trains of dense arrays."""
