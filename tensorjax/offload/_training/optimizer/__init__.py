"""The optimiser on the host, and checks of what it may look at."""
