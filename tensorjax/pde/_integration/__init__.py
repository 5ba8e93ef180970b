"""Integration in time: the loop over steps, its checks, statuses and results."""
