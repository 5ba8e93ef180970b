"""Linear systems in TT format: AMEn and TT-GMRES solvers."""
