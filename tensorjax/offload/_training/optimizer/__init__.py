"""Optax optimiser on the host, its labels and masks, and a check that groups are independent."""
