"""Computation on the device: engine, compiled programs of its layers, microbatches."""
