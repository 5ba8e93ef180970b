"""The manifold of trains of fixed TT-ranks."""
