"""Trains from samples of their entries."""
