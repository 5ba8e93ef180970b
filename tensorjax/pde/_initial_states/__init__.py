"""Initial states as trains: Gaussians in closed form, functions from their values."""
