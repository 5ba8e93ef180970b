"""Planner: chooses which parameter groups are kept in host memory or on disk.

Modules: memory_plan (the public function); placement_search; placement_costs (time and
memory of one placement); machine_speed (measured speeds);
step_time_bound (lower bound on a step's time).
"""
