"""Problems in nonlinear coordinates, such as those of flow maps."""
