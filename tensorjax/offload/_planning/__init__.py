"""Planner: chooses which parameter groups are kept in host memory or on disk.

Modules: memory_plan (the public function); placement_search; placement_costs (time and memory of
one placement, lower bound on a step's time); machine_speed (measured speeds).
"""
