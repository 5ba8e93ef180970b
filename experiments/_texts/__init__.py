"""Texts for the experiments that read them: the standard library, tokenizers, a cache.

What is here serves more than one experiment, so none has to import from another one's folder.
"""
