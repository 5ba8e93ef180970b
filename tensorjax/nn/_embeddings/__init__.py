"""Embeddings whose table is a tensor network."""
