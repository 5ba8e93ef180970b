"""Functions on boxes as tensor trains: initial states in closed form, cross approximation."""
