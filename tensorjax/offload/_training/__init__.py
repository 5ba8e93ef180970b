"""Trainer: layer by layer on the device, with optimiser updates on the host beside it.

Modules, those that stand on others first: _export; _trainer; _passes (forward, backward);
_weights (parameters to the device); _gradients (to the host); _updates with _turns, _ahead and
_jobs (which is next); _commits with _identity. What they share: _layers, _groups, _group, _bundle,
_homes (where parameters live), _optimizer, _order, _options, _shards and _across (several
processes), _host (memory of the host), _trace.
"""
