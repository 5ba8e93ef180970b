"""The lowest eigenpairs of Hermitian TT-matrices, by DMRG."""
