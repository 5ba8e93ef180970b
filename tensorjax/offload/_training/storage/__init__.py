"""Storage of the arrays of a training: transfer, packing, shards; host memory, tensor store."""
