// Products of small matrices at any strides: slices of cores, and sides of a chain of them.
#pragma once

#include "products.h"

namespace tensorjax {

// A matrix with rows and columns at any strides.
template <class T>
struct View {
  T* at;
  long row, column;
};

// A tile of C = A B or C += A B: `Rows` rows, `Wide` vectors V of columns; rows of B and C contiguous.
template <class T, class V, int Rows, int Wide>
inline void block(long depth, View<const T> a, const T* b, long ldb, T* c, long ldc, bool add) {
  constexpr int kCount = sizeof(V) / sizeof(T);
  const auto in = [](const T* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  };
  V sum[Rows][Wide];
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Wide; j++) sum[i][j] = add ? in(c + i * ldc + j * kCount) : V{};
  for (long p = 0; p < depth; p++) {
    V right[Wide];
    for (int j = 0; j < Wide; j++) right[j] = in(b + p * ldb + j * kCount);
    for (int i = 0; i < Rows; i++) {
      const T left = a.at[i * a.row + p * a.column];
      for (int j = 0; j < Wide; j++) sum[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Wide; j++) __builtin_memcpy(c + i * ldc + j * kCount, &sum[i][j], sizeof(V));
}

template <class T, class V, int Wide>
void blocks_down(long rows, long depth, View<const T> a, const T* b, long ldb, T* c, long ldc,
                 bool add) {
  long i = 0;
  const auto from = [&] { return View<const T>{a.at + i * a.row, a.row, a.column}; };
  for (; i + kRows <= rows; i += kRows)
    block<T, V, kRows, Wide>(depth, from(), b, ldb, c + i * ldc, ldc, add);
  if (kRows > 4 && i + 4 <= rows) {
    block<T, V, 4, Wide>(depth, from(), b, ldb, c + i * ldc, ldc, add);
    i += 4;
  }
  for (; i + 2 <= rows; i += 2)
    block<T, V, 2, Wide>(depth, from(), b, ldb, c + i * ldc, ldc, add);
  for (; i < rows; i++) block<T, V, 1, Wide>(depth, from(), b, ldb, c + i * ldc, ldc, add);
}

// What is left of the columns, in vectors of half the length and half of that.
template <class T, long Count>
void blocks_across(long rows, long columns, long depth, View<const T> a, const T* b, long ldb, T* c,
                   long ldc, bool add) {
  if constexpr (Count == 1) {
    for (long j = 0; j < columns; j++)
      blocks_down<T, T, 1>(rows, depth, a, b + j, ldb, c + j, ldc, add);
  } else {
    typedef T V __attribute__((vector_size(Count * sizeof(T))));
    long j = 0;
    for (; j + 3 * Count <= columns && columns - j != 4 * Count; j += 3 * Count)
      blocks_down<T, V, 3>(rows, depth, a, b + j, ldb, c + j, ldc, add);
    for (; j + 2 * Count <= columns; j += 2 * Count)
      blocks_down<T, V, 2>(rows, depth, a, b + j, ldb, c + j, ldc, add);
    for (; j + Count <= columns; j += Count)
      blocks_down<T, V, 1>(rows, depth, a, b + j, ldb, c + j, ldc, add);
    blocks_across<T, Count / 2>(rows, columns - j, depth, a, b + j, ldb, c + j, ldc, add);
  }
}

// C (rows × columns) = A B or C += A B; A has any strides, rows of B and C are contiguous.
template <class T>
void small_times(long rows, long columns, long depth, View<const T> a, const T* b, long ldb, T* c,
                 long ldc, bool add) {
  blocks_across<T, kBytes / sizeof(T)>(rows, columns, depth, a, b, ldb, c, ldc, add);
}

}  // namespace tensorjax
