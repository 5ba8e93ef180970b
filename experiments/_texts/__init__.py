"""Text data of the experiments: Python's standard library, tokenizers, a cache.

What is here serves more than one experiment, so none has to import from another one's folder.
"""
