"""Operations that arrays have: indexing, reshaping, permuting and reducing modes."""
