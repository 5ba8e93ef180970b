// Products on the host. Of wide matrices (rows × columns, row-major) that do not fit into any cache:
// Gram matrix and projection, which a BLAS packs first, at the cost of another pass or two. Of Gram
// matrices: factors no wider than their rank.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "products.h"
#include "team.h"

namespace tensorjax {

constexpr long kStrip = 512;  // columns that are worked on while they are in the cache

// Strips shared out in a number of pieces that does not depend on the number of threads.
struct Strips {
  long count, pieces;
  explicit Strips(long columns)
      : count((columns + kStrip - 1) / kStrip), pieces(std::min(count, 16L)) {}
  long start(long piece) const { return piece * count / pieces; }
};

// G = A Aᵀ (rows × rows).
inline void wide_gram(Team& team, long rows, long columns, const double* a, double* g) {
  const Strips strips(columns);
  const long whole = columns / kLanes * kLanes;
  std::vector<double> sums(strips.pieces * rows * rows, 0.0);
  team.run(strips.pieces, [&](long piece, int) {
    double* sum = sums.data() + piece * rows * rows;
    double part[kSide * kSide];
    for (long strip = strips.start(piece); strip < strips.start(piece + 1); strip++) {
      const long from = strip * kStrip, depth = std::max(0L, std::min(kStrip, whole - from));
      for (long i = 0; i < rows; i += kSide)
        for (long j = 0; j <= i; j += kSide) {
          const long p = std::min(kSide, rows - i), q = std::min(kSide, rows - j);
          inner(p, q, depth, a + i * columns + from, columns, a + j * columns + from, columns, part,
                kSide);
          for (long x = 0; x < p; x++)
            for (long y = 0; y < q; y++) sum[(i + x) * rows + j + y] += part[x * kSide + y];
        }
    }
  });
  for (long i = 0; i < rows; i++)
    for (long j = 0; j <= i; j++) {
      double total = 0;
      for (long piece = 0; piece < strips.pieces; piece++)
        total += sums[(piece * rows + i) * rows + j];
      for (long x = whole; x < columns; x++) total += a[i * columns + x] * a[j * columns + x];
      g[i * rows + j] = g[j * rows + i] = total;
    }
}

// P = Uᵀ A (few × columns), U (rows × few).
inline void wide_project(Team& team, long rows, long columns, long few, const double* u,
                         const double* a, double* out) {
  const Strips strips(columns);
  const long whole = columns / kLanes * kLanes;
  team.run(strips.pieces, [&](long piece, int) {
    constexpr long kWide = 3 * kLanes;
    std::vector<double> packed(kDepth * kWide);
    const long from = strips.start(piece) * kStrip;
    const long to = std::min(whole, strips.start(piece + 1) * kStrip);
    for (long j = from; j < to;) {
      const long width = std::min(kWide, to - j);
      for (long p = 0; p < rows; p += kDepth) {
        const long depth = std::min(kDepth, rows - p);
        for (long q = 0; q < depth; q++) {
          const double* row = a + (p + q) * columns + j;
          for (long v = 0; v < width; v += kLanes) {
            __builtin_prefetch(row + v + 8 * kWide, 0, 2);
            store(packed.data() + q * width + v, load(row + v));
          }
        }
        times_panel(few, width, depth, u + p * few, 1, few, packed.data(), out + j, columns, p > 0);
      }
      j += width;
    }
  });
  for (long b = 0; b < few; b++)
    for (long x = whole; x < columns; x++) {
      double total = 0;
      for (long i = 0; i < rows; i++) total += u[i * few + b] * a[i * columns + x];
      out[b * columns + x] = total;
    }
}

// Lᵀ (m × n, rows ld apart) with L Lᵀ = G (n × n) but for what is left when no pivot is above
// `roundoff`; m ≥ 1. Columns of G after the n-th are read, and zeros.
inline long pivoted_cholesky(long n, long ld, const double* g, double roundoff, double* lower) {
  std::vector<double> left(ld, 0.0);
  for (long i = 0; i < n; i++) left[i] = g[i * ld + i];
  for (long m = 0; m < n; m++) {
    const long p = std::max_element(left.begin(), left.end()) - left.begin();
    if (!(left[p] > roundoff)) {
      if (m == 0) std::fill(lower, lower + ld, 0.0);
      return std::max(m, 1L);
    }
    double* row = lower + m * ld;
    std::copy(g + p * ld, g + (p + 1) * ld, row);
    for (long i = 0; i < m; i++) {
      const double by = lower[i * ld + p];
      const double* above = lower + i * ld;
      for (long x = 0; x < ld; x++) row[x] -= by * above[x];
    }
    const double by = 1 / std::sqrt(left[p]);
    for (long x = 0; x < ld; x++) {
      row[x] *= by;
      left[x] -= row[x] * row[x];
    }
    left[p] = 0;
  }
  return n;
}

}  // namespace tensorjax
