"""Tucker decompositions of dense arrays: HOSVD, HOOI, non-negative."""
