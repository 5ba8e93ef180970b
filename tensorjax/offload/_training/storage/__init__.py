"""Where the arrays of a training live: parameter groups, packing, host memory, store."""
