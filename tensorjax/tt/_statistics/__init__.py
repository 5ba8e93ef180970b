"""Statistics of functions given as trains: variance components, Sobol indices, moments."""
