"""Riemannian geometry of the manifold of trains of fixed TT-ranks."""
