// Products of small dense row-major matrices, whose rows are padded to whole vectors.
//
// Sweeps over tensor trains multiply matrices of some ten to some hundred rows. At that size a
// general BLAS spends a good part of its time packing both factors and waking threads. Here only
// the right factor is packed, a panel of three vectors at a time; entries of the left one are
// broadcast from where they lie, by any strides, so that transposes cost nothing.
#pragma once

#include <algorithm>
#include <limits>

namespace tensorjax {

#ifdef __AVX512F__
constexpr int kBytes = 64, kRows = 8;
#else
constexpr int kBytes = 32, kRows = 4;
#endif
constexpr long kLanes = kBytes / sizeof(double);
constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr long kPad = 8;      // rows are padded to a multiple of this, for every width of vectors
constexpr long kDepth = 256;  // of a packed panel

typedef double Vector __attribute__((vector_size(kBytes), aligned(sizeof(double))));

inline long padded(long n) { return (n + kPad - 1) / kPad * kPad; }
// Numbers up to the end of the cache line where so many of them end.
template <class T>
inline long whole_lines(long count) {
  constexpr long kLine = 64 / sizeof(T);
  return (count + kLine - 1) / kLine * kLine;
}
inline Vector load(const double* p) { return *reinterpret_cast<const Vector*>(p); }
inline void store(double* p, Vector v) { *reinterpret_cast<Vector*>(p) = v; }

// Columns in whole vectors, cut into panels of one to three vectors, none much thinner than others.
struct Panels {
  long vectors, count;
  explicit Panels(long columns) : vectors(columns / kLanes), count((vectors + 2) / 3) {}
  long start(long panel) const { return kLanes * (panel * vectors / count); }
};

// A tile of C = A B or C += A B: `Rows` rows, `Wide` vectors of columns; b is packed.
template <int Rows, int Wide>
inline void tile(long depth, const double* a, long row, long column, const double* b, double* c,
                 long ldc, bool add) {
  Vector sum[Rows][Wide];
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Wide; j++) sum[i][j] = Vector{};
  for (long p = 0; p < depth; p++) {
    Vector right[Wide];
    for (int j = 0; j < Wide; j++) right[j] = load(b + (p * Wide + j) * kLanes);
    for (int i = 0; i < Rows; i++) {
      const double left = a[i * row + p * column];
      for (int j = 0; j < Wide; j++) sum[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Wide; j++) {
      double* at = c + i * ldc + j * kLanes;
      store(at, add ? load(at) + sum[i][j] : sum[i][j]);
    }
}

template <int Wide>
void panel(long rows, long depth, const double* a, long row, long column, const double* b,
           double* c, long ldc, bool add) {
  long i = 0;
  for (; i + kRows <= rows; i += kRows)
    tile<kRows, Wide>(depth, a + i * row, row, column, b, c + i * ldc, ldc, add);
  for (; i + 2 <= rows; i += 2)
    tile<2, Wide>(depth, a + i * row, row, column, b, c + i * ldc, ldc, add);
  for (; i < rows; i++)
    tile<1, Wide>(depth, a + i * row, row, column, b, c + i * ldc, ldc, add);
}

// C = A B or C += A B for one packed panel of `width` columns.
inline void times_panel(long rows, long width, long depth, const double* a, long row, long column,
                        const double* b, double* c, long ldc, bool add = false) {
  if (width == 3 * kLanes) panel<3>(rows, depth, a, row, column, b, c, ldc, add);
  else if (width == 2 * kLanes) panel<2>(rows, depth, a, row, column, b, c, ldc, add);
  else panel<1>(rows, depth, a, row, column, b, c, ldc, add);
}

// C (rows × columns) = A B. A has any strides, B and C are row-major; columns are whole vectors.
// `room` holds a packed panel (kDepth × 3 vectors). With `upper`, B is upper triangular; with `add`,
// the product is added to C.
inline void times(long rows, long columns, long depth, const double* a, long row, long column,
                  const double* b, long ldb, double* c, long ldc, double* room,
                  bool upper = false, bool add = false) {
  const Panels panels(columns);
  for (long x = 0; x < panels.count; x++) {
    const long j = panels.start(x), width = panels.start(x + 1) - j;
    const long deep = upper ? std::min(depth, j + width) : depth;
    for (long p = 0; p < deep; p += kDepth) {
      const long part = std::min(kDepth, deep - p);
      for (long q = 0; q < part; q++)
        for (long v = 0; v < width; v += kLanes)
          store(room + q * width + v, load(b + (p + q) * ldb + j + v));
      times_panel(rows, width, part, a + p * column, row, column, room, c + j, ldc, add || p > 0);
    }
  }
}

// G = AᵀA (columns × columns); only entries on and above the diagonal are meant.
inline void gram(long rows, long columns, const double* a, long lda, double* g, long ldg,
                 double* room) {
  const Panels panels(padded(columns));
  for (long x = 0; x < panels.count; x++) {
    const long j = panels.start(x), width = panels.start(x + 1) - j;
    times(std::min(columns, j + width), width, rows, a, 1, lda, a + j, lda, g + j, ldg, room);
  }
}

// C (Rows × Columns) = A Bᵀ, rows of A and B contiguous and whole vectors long.
template <int Rows, int Columns>
inline void inner_tile(long depth, const double* a, long lda, const double* b, long ldb, double* c,
                       long ldc) {
  Vector sum[Rows][Columns];
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Columns; j++) sum[i][j] = Vector{};
  for (long p = 0; p < depth; p += kLanes) {
    Vector right[Columns];
    for (int j = 0; j < Columns; j++) right[j] = load(b + j * ldb + p);
    for (int i = 0; i < Rows; i++) {
      const Vector left = load(a + i * lda + p);
      for (int j = 0; j < Columns; j++) sum[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Columns; j++) {
      double total = 0;
      for (int v = 0; v < kLanes; v++) total += sum[i][j][v];
      c[i * ldc + j] = total;
    }
}

// As above for any number of rows up to `side` of A and of B.
constexpr long kSide = kBytes == 64 ? 4 : 3;
inline void inner(long rows, long columns, long depth, const double* a, long lda, const double* b,
                  long ldb, double* c, long ldc) {
  if (rows == kSide && columns == kSide) {
    inner_tile<kSide, kSide>(depth, a, lda, b, ldb, c, ldc);
    return;
  }
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < columns; j++)
      inner_tile<1, 1>(depth, a + i * lda, lda, b + j * ldb, ldb, c + i * ldc + j, ldc);
}

// U^{-1} for UᵀU = G + diag(shift), and the squared pivots. G (upper part) is overwritten by U.
// Whole vectors are computed: what lies below the diagonal of U is of no meaning.
inline void inverse_factor(long n, double* g, long ld, const double* shift, double* inverse,
                           double* pivots) {
  const long end = padded(n);
  const auto from = [](long j) { return j / kLanes * kLanes; };
  for (long k = 0; k < n; k++) {
    double* u = g + k * ld;
    pivots[k] = u[k] + shift[k];
    const double root = __builtin_sqrt(pivots[k]), by = 1 / root;
    for (long j = from(k); j < end; j += kLanes) store(u + j, load(u + j) * by);
    u[k] = root;
    for (long i = k + 1; i < n; i++) {
      double* t = g + i * ld;
      for (long j = from(i); j < end; j += kLanes) store(t + j, load(t + j) - u[i] * load(u + j));
    }
  }
  for (long i = n - 1; i >= 0; i--) {
    double* out = inverse + i * ld;
    std::fill(out, out + ld, 0.0);
    out[i] = 1;
    const double* u = g + i * ld;
    for (long k = i + 1; k < n; k++) {
      const double* t = inverse + k * ld;
      for (long j = from(k); j < end; j += kLanes)
        store(out + j, load(out + j) - u[k] * load(t + j));
    }
    const double by = 1 / u[i];
    for (long j = from(i); j < end; j += kLanes) store(out + j, load(out + j) * by);
  }
}

}  // namespace tensorjax
