"""Storage of the arrays of a training: packing, host memory, tensor store."""
