// Sums of tensor trains: block-diagonal cores z = [x 0; 0 y], of all cores at once.
//
// Each train's cores are brought to one size first, by powers of two whose product is one: of blocks
// of very unlike size side by side, whatever scales a core as a whole loses the smaller one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "entrywise.h"
#include "team.h"

namespace tensorjax {

struct Summands {  // cores (r, n, s) and (q, n, t) of which one is made; the ends share their bond
  long r, q, n, s, t;
  bool first, last;
  long rows() const { return first ? 1 : r + q; }
  long columns() const { return last ? 1 : s + t; }
};

template <class T>
struct Ieee {
  using Bits = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  static constexpr int kMantissa = std::numeric_limits<T>::digits - 1;
  static constexpr int kBias = std::numeric_limits<T>::max_exponent - 1;
};

// The exponent e of the largest number, which is in [2^(e-1), 2^e); the least one of all for zeros.
template <class T>
int held_exponent(const T* x, long count) {
  using I = Ieee<T>;
  using Bits = typename I::Bits;
  Bits most = 0;  // magnitudes are ordered as their bits are
  for (long i = 0; i < count; i++) {
    Bits bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= std::numeric_limits<Bits>::max();
    most = bits > most ? bits : most;
  }
  const int e = static_cast<int>(most >> I::kMantissa) - I::kBias + 1;
  return std::clamp(e, 2 - I::kBias, I::kBias - 1);
}

// Powers of two that bring the cores of a train to one size; none for a train that is zero.
template <class T>
void even_out(const std::vector<int>& exponents, int32_t* moves) {
  const long d = static_cast<long>(exponents.size());
  std::fill(moves, moves + d, 0);
  long sum = 0;
  for (const int e : exponents) {
    if (e == 2 - Ieee<T>::kBias) return;
    sum += e;
  }
  const long rest = ((sum % d) + d) % d, share = (sum - rest) / d;
  for (long k = 0; k < d; k++) moves[k] = static_cast<int32_t>(share + (k < rest) - exponents[k]);
}

// x times 2^move, as two factors: one alone may be out of range where the product is not.
template <class T>
struct Scale {
  T one, two;
  explicit Scale(long move) {
    const long half = move >= 0 ? move / 2 : -((1 - move) / 2);
    one = power(half);
    two = power(move - half);
  }
  static T power(long e) {
    using I = Ieee<T>;
    const typename I::Bits bits = std::clamp<long>(e, 1 - I::kBias, I::kBias) + I::kBias;
    const typename I::Bits raw = bits << I::kMantissa;
    T out;
    std::memcpy(&out, &raw, sizeof out);
    return out;
  }
  void copy(const T* from, long count, T* to) const {
    if (one == 1 && two == 1) std::copy(from, from + count, to);
    else for (long i = 0; i < count; i++) to[i] = from[i] * one * two;
  }
};

// `parts` numbers of type T make an entry: two of a complex one.
template <class T>
void add_trains(Team& team, const std::vector<Summands>& cores, long parts,
                const std::vector<const T*>& x, const std::vector<const T*>& y,
                const std::vector<T*>& z, int32_t* moves) {
  const long d = static_cast<long>(cores.size());
  std::vector<int> ex(d), ey(d);
  team.run(2 * d, [&](long i, int) {
    const Summands& c = cores[i % d];
    if (i < d) ex[i] = held_exponent(x[i], c.r * c.n * c.s * parts);
    else ey[i - d] = held_exponent(y[i - d], c.q * c.n * c.t * parts);
  });
  even_out<T>(ex, moves);
  even_out<T>(ey, moves + d);
  struct Piece {
    long core, row;
  };
  std::vector<Piece> pieces;
  for (long k = 0; k < d; k++) {
    expect_writes(z[k], cores[k].rows() * cores[k].n * cores[k].columns() * parts * sizeof(T));
    for (long a = 0; a < cores[k].rows(); a++) pieces.push_back({k, a});
  }
  team.run(static_cast<long>(pieces.size()), [&](long i, int) {
    const auto [k, a] = pieces[i];
    const Summands& c = cores[k];
    const Scale<T> left(moves[k]), right(moves[d + k]);
    const long s = c.s * parts, t = c.t * parts, width = c.columns() * parts;
    T* to = z[k] + a * c.n * width;
    for (long j = 0; j < c.n; j++, to += width) {
      if (c.first) {
        left.copy(x[k] + j * s, s, to);
        right.copy(y[k] + j * t, t, to + s);
      } else if (a < c.r) {
        left.copy(x[k] + (a * c.n + j) * s, s, to);
        if (!c.last) std::fill(to + s, to + width, T(0));
      } else {
        if (!c.last) std::fill(to, to + s, T(0));
        right.copy(y[k] + ((a - c.r) * c.n + j) * t, t, c.last ? to : to + s);
      }
    }
  });
}

}  // namespace tensorjax
