"""Transfers between memory and disk: requests, queue, staging memory, reader, writer."""
