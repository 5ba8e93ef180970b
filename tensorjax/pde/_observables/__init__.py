"""Quantities of a density that need its logarithm, samples or derivatives."""
