"""Trainer: layer by layer on the device, with optimiser updates on the host beside it.

Modules, importers before what they import: export; trainer; pipeline (threads of a step); commits,
with fingerprint. Shared by all: options, trace, weak_cache. Folders: passes (forward and backward
by the engine, parameters to the device, gradients to the host), updates (parameter groups, their
optimiser on the host, scheduler, read budget) and storage (host memory or tensor store, shards).
"""
