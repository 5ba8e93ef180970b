"""Embeddings with tensor-network tables (TT, Tucker, CP): lookup, plans, conversion."""
