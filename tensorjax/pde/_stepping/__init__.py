"""One time step: right sides, methods, step sizes and rounded sums of trains."""
