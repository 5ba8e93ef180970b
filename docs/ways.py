"""Follows one small call of each system through the library; writes the counts in `ways.md`.

`python docs/ways.py` from the root of the repository prints, for every call, how many functions of
how many modules it runs through (*stays*: changes from a function of one module to one of another),
how often it goes to argument checks, and the order in which modules are first entered.
"""
