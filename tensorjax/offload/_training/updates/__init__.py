"""Optimiser updates on the host: scheduling, read budget, computation."""
