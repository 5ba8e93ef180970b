"""Rounding of trains, and of sums and products that are rounded without being formed."""
