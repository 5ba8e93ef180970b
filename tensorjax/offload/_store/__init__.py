"""Tensor store: named tensors in a file on disk, with asynchronous transfers and atomic commits.

Modules, those that stand on others first: _store, with _arguments; _transport; _writer and _reader
(tensors to transfers and back: staging, checksums) with _transfers; _queue (order and
back-pressure) with _requests; _backends (how bytes move). On the disk: _extents (where tensors
are), _index, _folder, _files, _checksums. In memory: _staging, _lease, _tensors, _statistics.
"""
