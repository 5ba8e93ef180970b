"""Choice of kernels: whether C++, NumPy or XLA serves a call, by one printable table."""
