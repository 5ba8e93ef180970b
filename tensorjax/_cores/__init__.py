"""Core arithmetic: contraction, orthogonalisation and truncation of the cores of tensor networks.

One code serves NumPy and JAX arrays. Arguments called ``cores`` are lists of arrays (r, n, s), or
(r, m, n, s) of operators, that share their bonds. Modules outside of this room and of
`tensorjax.contract` do not contract cores by hand: they call these functions, or `einsum`.
"""
