"""Choice of kernels: which of C++, NumPy and XLA serves a call, by one printable table."""
