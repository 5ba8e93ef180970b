// Exact products of two trains core by core, z (p r, …, q s) of x (p, …, q) and y (r, …, s): entry by
// entry, or summed over a mode as a matrix times a train. For trains with values, so that one call
// makes all cores, and brings them into the range of their type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "entrywise.h"
#include "team.h"

namespace tensorjax {

// A complex number as NumPy holds it, in single or double precision.
template <class R>
struct ComplexOf {
  R re, im;
  ComplexOf& operator+=(ComplexOf x) {
    re += x.re, im += x.im;
    return *this;
  }
};
template <class R>
inline ComplexOf<R> operator*(ComplexOf<R> x, ComplexOf<R> y) {
  return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}

template <class T>
struct Parts {  // of a number: their type, and how many there are
  using Real = T;
  static constexpr long kCount = 1;
};
template <class R>
struct Parts<ComplexOf<R>> {
  using Real = R;
  static constexpr long kCount = 2;
};

struct Sum {  // of cores (p, m, n, q) and (r, n, k, s) over n
  long p, m, n, q, r, k, s;
  long cells() const { return p * r * m * k * q * s; }
  double work() const { return static_cast<double>(n) * cells(); }
};

// z (q, s) = Σ_n x (n, q) y (n, s), rows of y so far apart; `Fixed` is s where the compiler knows it.
template <int Fixed, class T>
inline void outer_sum(const Sum& c, const T* x, const T* y, T* z) {
  const long s = Fixed ? Fixed : c.s;
  std::fill(z, z + c.q * s, T{});
  for (long n = 0; n < c.n; n++, y += c.k * s) {
    const T* left = x + n * c.q;
    for (long b = 0; b < c.q; b++)
      for (long d = 0; d < s; d++) z[b * s + d] += left[b] * y[d];
  }
}

// The right factor of sums with all r, k and s side by side, in rows of whole vectors: y as (n, ld).
// Complex numbers are pairs of real ones, in twice as many rows: those of y, for the real parts of x,
// and those of i y for the imaginary ones. The sums are then real, of rows of pairs.
template <int Parts, class T>
void rows_of_right(const Sum& c, const T* y, long ld, T* out) {
  const long row = c.k * c.s;
  for (long r = 0; r < c.r; r++)
    for (long n = 0; n < c.n; n++, y += row) {
      T* to = out + n * Parts * ld + r * row;
      std::copy(y, y + row, to);
      if constexpr (Parts == 2)
        for (long j = 0; j < row; j += 2) to[ld + j] = -y[j + 1], to[ld + j + 1] = y[j];
    }
}

// Columns of a tile that lie side by side in z: columns are (r, k, s), and z is (r, m, k, q, s).
struct Run {
  long at, count, to;
};
inline void runs_of(const Sum& c, long from, long end, std::vector<Run>* runs) {
  runs->clear();
  for (long j = from; j < end;) {
    const long block = j / c.s, s = j % c.s, some = std::min(end - j, c.s - s);
    const long r = block / c.k, k = block % c.k;
    runs->push_back({j - from, some, (r * c.m * c.k + k) * c.q * c.s + s});
    j += some;
  }
}

// `Rows` rows of z: (m, q) of x (m, n, q) from the `row`-th on, by `Wide` vectors of y from `from` on.
template <int Parts, int Rows, int Wide, class T>
inline void sum_tile(const Sum& c, const T* x, const T* y, long ld, long row, long from,
                     const std::vector<Run>& runs, T* z) {
  typedef T Lanes __attribute__((vector_size(64), aligned(sizeof(T))));
  Lanes found[Rows][Wide] = {};
  const T* left[Rows];
  for (int i = 0; i < Rows; i++)
    left[i] = x + Parts * ((row + i) / c.q * c.n * c.q + (row + i) % c.q);
  for (long n = 0; n < c.n; n++)
    for (int part = 0; part < Parts; part++) {
      const Lanes* right = reinterpret_cast<const Lanes*>(y + (n * Parts + part) * ld + from);
      for (int i = 0; i < Rows; i++)
        for (int j = 0; j < Wide; j++) found[i][j] += left[i][n * c.q * Parts + part] * right[j];
    }
  T sums[Rows][Wide * 64 / sizeof(T)];
  std::memcpy(sums, found, sizeof sums);
  for (int i = 0; i < Rows; i++) {
    T* const to = z + (row + i) / c.q * c.k * c.q * c.s + (row + i) % c.q * c.s;
    for (const Run& run : runs)
      for (long j = 0; j < run.count; j++) to[run.to + j] = sums[i][run.at + j];
  }
}

// All of z whose left bond comes from index `p` of x; s of complex numbers counts their parts.
template <int Parts, class T>
void sum_by_tiles(const Sum& c, long p, const T* x, const T* y, T* z) {
  constexpr int kVector = 64 / sizeof(T);
  const long columns = c.r * c.k * c.s, rows = c.m * c.q;
  const long ld = (columns + kVector - 1) / kVector * kVector;
  std::vector<T> right(c.n * Parts * ld);
  rows_of_right<Parts>(c, y, ld, right.data());
  std::vector<Run> runs;
  x += p * c.m * c.n * c.q * Parts;
  z += p * (c.cells() / c.p);
  for (long from = 0; from < ld;) {
    const bool two = from + 2 * kVector <= ld;
    runs_of(c, from, std::min(columns, from + (two ? 2 : 1) * kVector), &runs);
    long row = 0;
    for (; row + 4 <= rows; row += 4)
      two ? sum_tile<Parts, 4, 2>(c, x, right.data(), ld, row, from, runs, z)
          : sum_tile<Parts, 4, 1>(c, x, right.data(), ld, row, from, runs, z);
    for (; row < rows; row++)
      two ? sum_tile<Parts, 1, 2>(c, x, right.data(), ld, row, from, runs, z)
          : sum_tile<Parts, 1, 1>(c, x, right.data(), ld, row, from, runs, z);
    from += two ? 2 * kVector : kVector;
  }
}

// The same one by one, of few.
constexpr double kFewSums = 512;  // multiplications below which to pack a factor takes longer
template <class T>
void sum_slice(const Sum& c, long p, const T* x, const T* y, T* z) {
  z += p * (c.cells() / c.p);
  for (long r = 0; r < c.r; r++)
    for (long m = 0; m < c.m; m++)
      for (long k = 0; k < c.k; k++, z += c.q * c.s) {
        const T* left = x + (p * c.m + m) * c.n * c.q;
        const T* right = y + (r * c.n * c.k + k) * c.s;
        switch (c.s) {
          case 1: outer_sum<1>(c, left, right, z); break;
          case 2: outer_sum<2>(c, left, right, z); break;
          case 3: outer_sum<3>(c, left, right, z); break;
          case 4: outer_sum<4>(c, left, right, z); break;
          default: outer_sum<0>(c, left, right, z);
        }
      }
}

template <class T>
void sum_trains(Team& team, const std::vector<Sum>& sums, const std::vector<const T*>& x,
                const std::vector<const T*>& y, const std::vector<T*>& z) {
  struct Piece {
    size_t core;
    long p;
  };
  std::vector<Piece> pieces;
  for (size_t k = 0; k < sums.size(); k++)
    for (long p = 0; p < sums[k].p; p++) pieces.push_back({k, p});
  team.run(static_cast<long>(pieces.size()), [&](long i, int) {
    const auto [k, p] = pieces[i];
    if (sums[k].work() < kFewSums) return sum_slice(sums[k], p, x[k], y[k], z[k]);
    using Real = typename Parts<T>::Real;
    Sum parts = sums[k];
    parts.s *= Parts<T>::kCount;
    sum_by_tiles<Parts<T>::kCount>(parts, p, reinterpret_cast<const Real*>(x[k]),
                                   reinterpret_cast<const Real*>(y[k]),
                                   reinterpret_cast<Real*>(z[k]));
  });
}

// The exponent e of the largest part of some numbers, in [2^(e−1), 2^e); 0 of zeros, NaN and Inf.
// Sets `zero` where all are zero.
template <class T>
int exponent_of(const T* x, long count, bool* zero = nullptr) {
  using Real = typename Parts<T>::Real;
  const Real* part = reinterpret_cast<const Real*>(x);
  Real most = 0;
  bool finite = true;
  for (long i = 0; i < count * Parts<T>::kCount; i++) {
    const Real size = std::abs(part[i]);
    finite = finite && size <= std::numeric_limits<Real>::max();
    most = std::max(most, size);
  }
  int e = 0;
  if (finite) std::frexp(most, &e);
  if (zero && finite && most == 0) *zero = true;
  return e;
}

// Scales the cores of y by powers of two that cancel, so that products with those of x stay in range;
// they stay as they are where all are in range. See `factors_in_range` of tensorjax/_cores/scaling.py.
template <class T>
class InRange {
 public:
  using Real = typename Parts<T>::Real;

  // xs, ys: how many numbers each core has; terms: that are summed up in an entry of a product.
  InRange(const std::vector<const T*>& x, const std::vector<long>& xs, std::vector<const T*>* y,
          const std::vector<long>& ys, long terms) {
    using Limits = std::numeric_limits<Real>;
    const long low = Limits::min_exponent - 1 + Limits::digits - 1, high = Limits::max_exponent - 1;
    long bits = 0;
    for (; terms; terms >>= 1) bits++;
    std::vector<long> own;
    bool zero = false;
    for (size_t k = 0; k < x.size(); k++)
      own.push_back(exponent_of(x[k], xs[k], &zero) + exponent_of((*y)[k], ys[k], &zero));
    if (*std::min_element(own.begin(), own.end()) >= low &&
        *std::max_element(own.begin(), own.end()) <= high - bits)
      return;
    const long d = static_cast<long>(own.size()), half = high / 2;
    std::vector<long> wanted;
    long rest = 0;
    for (const long e : own) {
      wanted.push_back(std::clamp(e, -half, half));
      rest += e - wanted.back();
    }
    if (zero) rest = 0;  // so is the product: the other cores only have to stay finite
    const long share = rest >= 0 ? rest / d : -((d - 1 - rest) / d);
    rest -= share * d;
    copies_.resize(d);
    for (long k = 0; k < d; k++) {
      const int move = static_cast<int>(wanted[k] + share + (k < rest) - own[k]);
      copies_[k].assign((*y)[k], (*y)[k] + ys[k]);
      Real* part = reinterpret_cast<Real*>(copies_[k].data());
      for (long i = 0; i < ys[k] * Parts<T>::kCount; i++) part[i] = std::ldexp(part[i], move);
      (*y)[k] = copies_[k].data();
    }
  }

 private:
  std::vector<std::vector<T>> copies_;  // what y points to afterwards
};

}  // namespace tensorjax
