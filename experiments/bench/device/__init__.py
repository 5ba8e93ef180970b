"""Benchmark for an accelerator that is available for minutes: `bench/device`.

`main` shares the time out and starts each of the parts of `parts` in a process of its own, which
appends its rows to a file of JSON lines in ``results``; `readme` turns these files into tables. See
the section "bench/device" of the README one folder up.
"""
