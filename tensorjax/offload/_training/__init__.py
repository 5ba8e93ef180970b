"""Trainer: layer by layer on the device, with optimiser updates on the host beside it.

Modules, importers before what they import: export; trainer; pipeline (threads of a step); commits,
with fingerprint. Shared by all: layers, options, shards (several processes) and trace. Folders:
passes (forward and backward, parameters to the device, gradients to the host), updates (scheduler,
read budget), groups (parameter groups), optimizer, and storage (host memory or tensor store).
"""
