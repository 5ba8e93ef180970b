"""TT-SVD: dense arrays into tensor trains."""
