"""Whole models: replacement of their layers, the way back, adapters, sizes, and a summary."""
