"""Convolutions whose kernel is in TT, Tucker or CP format, and their conversion."""
