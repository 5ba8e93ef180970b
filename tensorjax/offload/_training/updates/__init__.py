"""Optimiser updates on the host: parameter groups, optimiser, scheduling, read budget."""
