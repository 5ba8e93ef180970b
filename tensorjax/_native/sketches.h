// Rows of data times a Kronecker-like map of two factors, y = Σ_r (A_r ⊗ C_r) x, in one pass over x.
//
// A row is a matrix (n × m). Its rows are combined by A while they stream in from memory, into sums
// that stay in the cache; what is left is small and multiplied by C there.
#pragma once

#include <algorithm>
#include <vector>

#include "products.h"
#include "team.h"

namespace tensorjax {

#ifdef __AVX512F__
constexpr int kSums = 24;  // registers that hold sums
#else
constexpr int kSums = 12;
#endif
constexpr long kTogether = 32;  // rows that are combined before the sums are put away
constexpr long kShare = 16;     // rows of data that a thread takes at a time

template <class T>
struct Lanes {
  typedef T Type __attribute__((vector_size(kBytes), aligned(sizeof(T))));
  static constexpr long kCount = kBytes / sizeof(T);
  static Type load(const T* p) { return *reinterpret_cast<const Type*>(p); }
  static void store(T* p, Type v) { *reinterpret_cast<Type*>(p) = v; }
};

template <class T>
class Sketch {
 public:
  static constexpr long kLane = Lanes<T>::kCount;

  // x is (batch, n, m), A (n, j, r), C (r, m, k), y (batch, j, k); m is a vector at least.
  Sketch(long batch, long n, long m, long j, long r, long k)
      : batch_(batch), n_(n), m_(m), j_(j), r_(r), k_(k),
        ld_((m + kLane - 1) / kLane * kLane), rows_(j * r) {}

  double work() const { return 1.0 * batch_ * n_ * m_ * rows_; }

  void run(Team& team, const T* x, const T* a, const T* c, T* y) const {
    std::vector<T> packed(k_ * r_ * ld_, T(0));  // C with rows (k, r) of whole vectors
    for (long r = 0; r < r_; r++)
      for (long q = 0; q < m_; q++)
        for (long k = 0; k < k_; k++) packed[(k * r_ + r) * ld_ + q] = c[(r * m_ + q) * k_ + k];
    std::vector<std::vector<T>> sums(team.size(), std::vector<T>(rows_ * (ld_ + kLane)));
    team.run((batch_ + kShare - 1) / kShare, [&](long piece, int who) {
      const long end = std::min(batch_, (piece + 1) * kShare);
      for (long b = piece * kShare; b < end; b++) {
        combine(x + b * n_ * m_, a, sums[who].data());
        finish(sums[who].data(), packed.data(), y + b * j_ * k_);
      }
    });
  }

 private:
  // Rows of A ᵀ x: in whole vectors, and, after those of all rows, the last vector of each.
  void combine(const T* x, const T* a, T* sums) const {
    for (long i = 0; i < n_; i += kTogether) {
      const long some = std::min(kTogether, n_ - i);
      for (long row = 0; row < rows_;) {
        const long left = rows_ - row, few = left > 8 ? std::min(6L, left) : left;
        const T *xi = x + i * m_, *ai = a + i * rows_ + row;
        switch (few) {
          case 8: stripe<8>(xi, ai, some, sums, row, i > 0); break;
          case 7: stripe<7>(xi, ai, some, sums, row, i > 0); break;
          case 6: stripe<6>(xi, ai, some, sums, row, i > 0); break;
          case 5: stripe<5>(xi, ai, some, sums, row, i > 0); break;
          case 4: stripe<4>(xi, ai, some, sums, row, i > 0); break;
          case 3: stripe<3>(xi, ai, some, sums, row, i > 0); break;
          case 2: stripe<2>(xi, ai, some, sums, row, i > 0); break;
          default: stripe<1>(xi, ai, some, sums, row, i > 0);
        }
        row += few;
      }
    }
    const long whole = m_ / kLane * kLane, rest = m_ - whole;
    if (!rest) return;
    for (long row = 0; row < rows_; row++) {
      const T* last = sums + rows_ * ld_ + row * kLane;
      std::fill(std::copy(last + kLane - rest, last + kLane, sums + row * ld_ + whole),
                sums + (row + 1) * ld_, T(0));
    }
  }

  template <int Rows>
  void stripe(const T* x, const T* a, long some, T* sums, long row, bool add) const {
    constexpr int kWide = std::min(6, kSums / Rows);
    T* to = sums + row * ld_;
    const long whole = m_ / kLane, count = (whole + kWide - 1) / kWide;
    for (long i = 0; i < count; i++) {  // tiles none of which is much thinner than the others
      const long v = i * whole / count, wide = (i + 1) * whole / count - v;
      tiles<Rows, kWide>(wide, x + v * kLane, a, some, to + v * kLane, add);
    }
    // What is left over is computed with what is before it, to read nothing beyond the row.
    if (whole * kLane < m_)
      tile<Rows, 1>(x + m_ - kLane, a, some, sums + rows_ * ld_ + row * kLane, kLane, add);
  }

  template <int Rows, int Wide>
  void tiles(long wide, const T* x, const T* a, long some, T* to, bool add) const {
    if (wide == Wide) return tile<Rows, Wide>(x, a, some, to, ld_, add);
    if constexpr (Wide > 1) tiles<Rows, Wide - 1>(wide, x, a, some, to, add);
  }

  template <int Rows, int Wide>
  void tile(const T* x, const T* a, long some, T* to, long ld, bool add) const {
    using L = Lanes<T>;
    typename L::Type sum[Rows][Wide];
    for (int i = 0; i < Rows; i++)
      for (int w = 0; w < Wide; w++)
        sum[i][w] = add ? L::load(to + i * ld + w * kLane) : typename L::Type{};
    for (long p = 0; p < some; p++) {
      typename L::Type right[Wide];
      for (int w = 0; w < Wide; w++) {
        const T* at = x + p * m_ + w * kLane;
        right[w] = L::load(at);
        __builtin_prefetch(at + kTogether * m_, 0, 2);  // what the next call will read
      }
      for (int i = 0; i < Rows; i++) {
        const T left = a[p * rows_ + i];
        for (int w = 0; w < Wide; w++) sum[i][w] += left * right[w];
      }
    }
    for (int i = 0; i < Rows; i++)
      for (int w = 0; w < Wide; w++) L::store(to + i * ld + w * kLane, sum[i][w]);
  }

  // y (j, k) = Σ_r sums (j, r, ·) · C (k, r, ·).
  void finish(const T* sums, const T* packed, T* y) const {
    using L = Lanes<T>;
    const long length = r_ * ld_;
    for (long j = 0; j < j_; j++)
      for (long k = 0; k < k_; k++) {
        const T *left = sums + j * length, *right = packed + k * length;
        typename L::Type sum[2] = {};
        long q = 0;
        for (; q + 2 * kLane <= length; q += 2 * kLane)
          for (int v = 0; v < 2; v++)
            sum[v] += L::load(left + q + v * kLane) * L::load(right + q + v * kLane);
        if (q < length) sum[0] += L::load(left + q) * L::load(right + q);
        sum[0] += sum[1];
        T total = 0;
        for (long v = 0; v < kLane; v++) total += sum[0][v];
        y[j * k_ + k] = total;
      }
  }

  long batch_, n_, m_, j_, r_, k_, ld_, rows_;
};

}  // namespace tensorjax
