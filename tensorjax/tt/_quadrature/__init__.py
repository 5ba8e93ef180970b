"""Integrals of functions by cross approximation at the nodes of quadrature rules."""
