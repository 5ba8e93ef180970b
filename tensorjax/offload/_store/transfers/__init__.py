"""Transfers between memory and disk: requests, their queue, staging memory."""
