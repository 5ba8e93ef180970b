"""Choice of kernels: whether C++, NumPy or XLA computes a call, by one printable table."""
