"""Lowest eigenpairs of Hermitian TT-matrices, by DMRG."""
