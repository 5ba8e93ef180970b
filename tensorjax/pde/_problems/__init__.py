"""Equations: right sides, initial states and exact solutions."""
