"""Cost model of host linear algebra: predicted times by which algorithms are chosen.

Nanoseconds of one core (measured with OpenBLAS on AVX-512 in float64; single precision changes
all of them by about one factor). Only ratios of them are ever compared, so other machines need no
others.
"""

# Time to read an entry, and per entry for every row of a Gram matrix or column of a product.
_READ, _GRAM_ROW, _COLUMN = 0.9, 1 / 60, 1 / 35
# Reading a tall matrix takes longer by this factor: a BLAS packs it, our C++ passes do not.
_TALL = 1.5
# Eigenvectors of a complex matrix take longer by this factor.
_COMPLEX = 3
# Fixed time of a call of any size; and of a sketch, which makes some dozens of calls.
_CALL, _SKETCH = 4e3, 3e5


def gram(size: float, rows: float, right: bool = False, parts: int = 1) -> float:
    """Predicts the time of computing the Gram matrix of a matrix's rows, or of its columns.

    parts: 2 of complex entries, of which a product takes four real ones; so below.
    """
    return _CALL + size * parts * (_READ * (_TALL if right else 1) + _GRAM_ROW * parts * rows)


def eigh(rows: float, parts: int = 1) -> float:
    """Predicts the time of computing all eigenvectors of a Hermitian matrix."""
    return _CALL + 85 * rows**2 * (1 + rows / 1000) * (_COMPLEX if parts == 2 else 1)


def product(size: float, columns: float, right: bool = False, parts: int = 1) -> float:
    """Predicts the time of a host matrix product with ``columns`` columns, for the cost model."""
    return _CALL + size * parts * (_READ * (_TALL if right else 1) + _COLUMN * parts * columns)


def cut(size: float, rows: float, rank: float, right: bool = False, parts: int = 1) -> float:
    """Predicts the time of a truncation by a Gram matrix: its eigenvectors, and the projection."""
    out = gram(size, rows, right, parts) + eigh(rows, parts)
    return out if rank >= rows else out + product(size, rank, right, parts)


def sketched(size: float, columns: float, passes: int) -> float:
    """Predicts the time of finding a leading subspace by a random sketch."""
    return _SKETCH + _READ * size + passes * product(size, columns)
