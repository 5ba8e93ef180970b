"""Tensor store: named tensors in a file on disk, with asynchronous transfers and atomic commits.

Modules, importers before what they import: store, on arguments_and_contents; transport (opens and
closes the parts below); writer, reader and lease (staging, checksums). In memory: tensor_states,
statistics. Folders: backends (reads and writes of bytes), transfers (queue, requests, staging
memory) and disk (extents, index, folder, checksums).
"""
