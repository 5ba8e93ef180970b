"""Statistics of functions given as tensor trains: variance components, Sobol indices, moments."""
