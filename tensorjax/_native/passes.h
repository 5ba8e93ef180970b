// Products on the host. Of wide matrices (rows × columns, row-major) that do not fit into any cache:
// Gram matrix and projection, which a BLAS packs first, at the cost of another pass or two. Of Gram
// matrices: factors no wider than their rank.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "complex_rows.h"
#include "products.h"
#include "team.h"

namespace tensorjax {

constexpr long kStrip = 512;  // columns that are worked on while they are in the cache
// Of few rows there are more, up to so many, and numbers in all: the ends of strips take time too.
constexpr long kLongStrip = 2048, kPacked = 1L << 13;
// Of many rows there are fewer, so that no more numbers than the first are packed at a time, which a
// cache holds, but no less than the second: the ends of strips take time too.
constexpr long kMostPacked = 1L << 16, kShortStrip = 128;

// Strips shared out in a number of pieces that does not depend on the number of threads.
struct Strips {
  long count, pieces;
  explicit Strips(long columns)
      : count((columns + kStrip - 1) / kStrip), pieces(std::min(count, 16L)) {}
  long start(long piece) const { return piece * count / pieces; }
};

// A matrix on the host, real or complex, of any strides.
template <class T>
struct Matrix {
  const T* a;
  long rows, columns, parts;  // of an entry: a number, or real and imaginary part
  long down, along;           // how many numbers from a row, or a column, to the next
  long imaginary = 1;         // and from a real part to the imaginary one

  const T* at(long part, long row, long column) const {
    return a + part * imaginary + row * down + column * along;
  }
};

// Numbers that lie so far apart, one after another. The usual strides are constants, for vectors.
template <class T>
inline void gather(const T* from, long stride, long count, double* to) {
  if (stride == 1)
    for (long c = 0; c < count; c++) to[c] = from[c];
  else if (stride == 2)
    for (long c = 0; c < count; c++) to[c] = from[2 * c];
  else
    for (long c = 0; c < count; c++) to[c] = from[c * stride];
}

// Copies columns from `from` on, `depth` of them, into rows of double precision: those of real
// parts, then those of imaginary ones. From a tall matrix a vector's worth of columns at a time, so
// that what is read, and what is written, comes in pieces.
template <class T>
inline void pack(const Matrix<T>& m, long from, long depth, double* out, long ld) {
  const bool whole = m.along == (m.imaginary == 1 ? m.parts : 1);  // rows in one piece
  for (long x = 0; x < depth; x += whole ? depth : kLanes) {
    const long some = whole ? depth : std::min(kLanes, depth - x);
    for (long r = 0; r < m.rows; r++)
      for (long part = 0; part < m.parts; part++)
        gather(m.at(part, r, from + x), m.along, some, out + (part * m.rows + r) * ld + x);
  }
}

// G = A Aᴴ (rows × rows), with parts as in A, summed in double precision.
template <class T>
inline void wide_gram(Team& team, const Matrix<T>& m, double* g) {
  const long rows = m.rows * m.parts, side = (rows + kSide - 1) / kSide * kSide;
  // Whole rows of `padded` columns: a strip whose length is not padded would end in the next row.
  const long most = std::max(kShortStrip, kMostPacked / side / kPad * kPad);
  const long strip =
      std::min(most, std::max(kStrip, std::min(kLongStrip, kPacked / side / kPad * kPad)));
  const long count = (m.columns + strip - 1) / strip;
  // Sums of all pieces are to take less memory than a fourth of the data, if there are more than two.
  const long pieces = std::min({count, 16L, std::max(2L, m.columns / (4 * side))});
  std::vector<double> sums(pieces * side * side, 0.0);
  team.run(pieces, [&](long piece, int) {
    double* sum = sums.data() + piece * side * side;
    const long ld = std::min(strip, padded(m.columns));
    std::vector<double> packed(side * ld, 0.0);
    double part[kSide * kSide];
    for (long s = piece * count / pieces; s < (piece + 1) * count / pieces; s++) {
      const long depth = std::min(strip, m.columns - s * strip), whole = padded(depth);
      pack(m, s * strip, depth, packed.data(), ld);
      for (long r = 0; r < rows; r++)
        std::fill(packed.data() + r * ld + depth, packed.data() + r * ld + whole, 0.0);
      for (long i = 0; i < side; i += kSide)
        for (long j = 0; j <= i; j += kSide) {
          inner_tile<kSide, kSide>(whole, packed.data() + i * ld, ld, packed.data() + j * ld, ld,
                                   part, kSide);
          for (long x = 0; x < kSide; x++)
            for (long y = 0; y < kSide; y++) sum[(i + x) * side + j + y] += part[x * kSide + y];
        }
    }
  });
  for (long piece = 1; piece < pieces; piece++)
    for (long x = 0; x < side * side; x++) sums[x] += sums[piece * side * side + x];
  const auto at = [&](long i, long j) { return sums[i * side + j]; };  // j ≤ i
  const long n = m.rows;
  for (long i = 0; i < n; i++)
    for (long j = 0; j <= i; j++) {
      if (m.parts == 1) {
        g[i * n + j] = g[j * n + i] = at(i, j);
        continue;
      }
      const double real = at(i, j) + at(n + i, n + j), turned = at(n + i, j) - at(n + j, i);
      g[2 * (i * n + j)] = g[2 * (j * n + i)] = real;
      g[2 * (i * n + j) + 1] = turned;
      g[2 * (j * n + i) + 1] = -turned;
    }
}

// P = Uᵀ A (few × columns), U (rows × few): rows of real parts of A, then those of imaginary ones.
template <class T>
inline void wide_project(Team& team, const Matrix<T>& a, long few, const double* u, double* out) {
  const long columns = a.columns, rows = a.rows * a.parts;
  const Strips strips(columns);
  const long whole = columns / kLanes * kLanes;
  const auto from = [&](long row, long column) { return a.at(row / a.rows, row % a.rows, column); };
  team.run(strips.pieces, [&](long piece, int) {
    constexpr long kWide = 3 * kLanes;
    std::vector<double> packed(kDepth * kWide);
    const long first = strips.start(piece) * kStrip;
    const long last = std::min(whole, strips.start(piece + 1) * kStrip);
    for (long j = first; j < last;) {
      const long width = std::min(kWide, last - j);
      for (long p = 0; p < rows; p += kDepth) {
        const long depth = std::min(kDepth, rows - p);
        for (long q = 0; q < depth; q++) {
          const T* row = from(p + q, j);
          for (long v = 0; v < width * a.along; v += 64 / static_cast<long>(sizeof(T)))
            __builtin_prefetch(row + v + 8 * kWide * a.along, 0, 2);
          gather(row, a.along, width, packed.data() + q * width);
        }
        times_panel(few, width, depth, u + p * few, 1, few, packed.data(), out + j, columns, p > 0);
      }
      j += width;
    }
  });
  for (long b = 0; b < few; b++)
    for (long x = whole; x < columns; x++) {
      double total = 0;
      for (long i = 0; i < rows; i++) total += u[i * few + b] * *from(i, x);
      out[b * columns + x] = total;
    }
}

// Cholesky's factorisation with pivots of a Gram matrix G (n × n, rows ld apart), row by row: after
// m of them G = LᴴL + E with E ≥ 0, L (m × ld). Columns of G after the n-th are read, and zeros.
template <class S>
class PivotedRows {
 public:
  PivotedRows(long n, long ld, const S* g) : ld_(ld), g_(g), left_(ld, 0.0) {
    for (long i = 0; i < n; i++) left_[i] = real(g[i * ld + i]);
  }

  // Adds row m to L. False, and adds nothing, where no pivot is above `least`.
  bool add(long m, double least, S* l) {
    const long p = std::max_element(left_.begin(), left_.end()) - left_.begin();
    if (!(left_[p] > least)) return false;
    S* row = l + m * ld_;
    std::copy(g_ + p * ld_, g_ + (p + 1) * ld_, row);
    for (long k = 0; k < m; k++) {
      const S* above = l + k * ld_;
      const S by = S{-1} * conj(above[p]);
      for (long x = 0; x < ld_; x++) row[x] += by * above[x];
    }
    const double scale = 1 / std::sqrt(left_[p]);
    missed_ = 0;
    for (long x = 0; x < ld_; x++) {
      row[x] = S{scale} * row[x];
      left_[x] = x == p ? 0 : std::max(left_[x] - real(conj(row[x]) * row[x]), 0.0);
      missed_ += left_[x];
    }
    return true;
  }

  double missed() const { return missed_; }  // trace of E, after a row

 private:
  const long ld_;
  const S* g_;
  std::vector<double> left_;  // the diagonal of E
  double missed_ = 0;
};

// All rows above roundoff, at least one; returns how many.
inline long pivoted_cholesky(long n, long ld, const double* g, double roundoff, double* lower) {
  PivotedRows<double> rows(n, ld, g);
  long m = 0;
  while (m < n && rows.add(m, roundoff, lower)) m++;
  if (m == 0) std::fill(lower, lower + ld, 0.0);
  return std::max(m, 1L);
}

}  // namespace tensorjax
