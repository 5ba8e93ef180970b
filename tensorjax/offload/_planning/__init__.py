"""Planner: which parameter groups are kept in memory or on disk.

Modules: _plan; _placement (the search); _machine (measured speeds); _bound (lower bound).
"""
