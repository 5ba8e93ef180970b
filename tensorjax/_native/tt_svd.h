// TT-SVD of a small dense array by Gram matrices, in double precision; see
// tensorjax/tt/_tt_svd/small_arrays.py.
//
// From either end, whichever spares the longer sides; what was split off on the right is made
// orthonormal from the left in the end, and the norm goes to the last core. Of an unfolding with few
// rows, or columns, the next modes are joined to them, and one Gram matrix serves the bonds of all:
// that of an earlier bond is a partial trace of it, so the array is read twice for several bonds. Of
// a tall unfolding the Gram matrix of its columns is taken; the core is then made orthonormal, for
// A V loses that as the singular values fall.
//
// Complex arrays are held as two planes, of real and of imaginary parts, so that all products are
// those of real matrices; see complex_rows.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "complex_rows.h"
#include "lapack.h"
#include "orthonormal_columns.h"
#include "overlaps.h"
#include "passes.h"
#include "products.h"
#include "team.h"
#include "tt_svd_order.h"

namespace tensorjax {

// kParts: 1 of real arrays, 2 of complex ones; T: of a part.
template <long kParts, class T, class S = std::conditional_t<kParts == 2, Complex, double>>
class SmallTTSVD : private OrthonormalColumns<kParts, S> {
 public:
  // n: the modes; share: of the energy, for each bond; noise: that of a Gram matrix, as a share.
  SmallTTSVD(const std::vector<long>& n, double share, double noise, const Lapack& lapack)
      : n_(n), share_(share), noise_(noise), lapack_(lapack) {}

  // Writes the cores to `out`, one after another, each a whole number of cache lines on, and their
  // ranks (d + 1). False where a side is longer than these eigenproblems are good for, or an entry
  // is not finite.
  bool run(Team& team, const T* x, int64_t* ranks, T* out) {
    const long d = static_cast<long>(n_.size());
    long first = 0, last = d, left = 1, right = 1, size = 1, guess = kGuess;
    for (const long n : n_) size *= n;
    given_ = x;
    ranks[0] = ranks[d] = 1;
    while (last - first > 1) {
      const long open = last - first, rows = left * n_[first], columns = size / rows;
      most_ = size < kLarge ? kMostOfSmall : kMost;
      const long wide = join(rows, columns, first + 1, last - 1, 1);
      const long tall = join(n_[last - 1] * right, size / n_[last - 1] / right, last - 2, first, -1);
      long side = std::min(rows, columns), rank = 0;
      const bool too_long = side >= most_;
      // Of full rank, longer ones on the right would leave a side as long on the left, in vain.
      const long beside = size < kLarge ? kMostBesideOfSmall : kMostBeside;
      if (too_long && !(last - first > 2 && tall < beside && tall * tall <= size)) return false;
      if (last - first > 2 && (too_long || right_first(size, wide, tall, guess, kParts))) {
        side = tall;
        if (!split_right(team, size / tall, tall, &last, &right, ranks)) return false;
        rank = right, size = size / tall * right;
      } else {
        if (rows <= columns) {
          side = wide;
          if (!split_wide(team, wide, size / wide, &first, &left, ranks, &out)) return false;
          size = left * (size / wide);
        } else {
          if (!split_tall(team, first++, rows, columns, ranks, &out)) return false;
          left = ranks[first], size = left * columns;
        }
        rank = left;
      }
      guess = rank == side ? 2 * rank : rank + rank / 4 + 2;
      if (last - first >= open) return false;  // no loop without end: each step splits a mode off
    }
    norm_to_the_right(first, left, right, ranks, &out);
    return true;
  }

 private:
  using Base = OrthonormalColumns<kParts, S>;
  using typename Base::Small;
  using Base::multiplied, Base::normalise, Base::orthonormalise, Base::panel_, Base::products;

  // A core of the right side (t × n·after), of rows as in complex_rows.h.
  struct Right {
    long t, n, after;
    Numbers rows;
  };

  // A as planes (rows × columns). It is the data themselves until something is cut: small arrays
  // cost as much to copy.
  const double* planes(long size) {
    if (!given_) return at_;
    if constexpr (kParts == 1 && std::is_same_v<T, double>) {
      at_ = given_;
    } else {
      double* to = a_.of(kParts * size);
      for (long part = 0; part < kParts; part++)
        gather(given_ + part, kParts, size, to + part * size);
      at_ = to;
    }
    given_ = nullptr;
    return at_;
  }
  // Calls f(A or Aᵀ), of so many rows, which lie so far apart, as do columns.
  template <class F>
  void as_matrix(long rows, long columns, long down, long along, const F& f) const {
    if (given_)
      f(Matrix<T>{given_, rows, columns, kParts, kParts * down, kParts * along});
    else
      f(Matrix<double>{at_, rows, columns, kParts, down, along, kParts == 2 ? rows * columns : 1});
  }
  // Room for numbers, without a value: the system's clearing of fresh memory takes long enough.
  class Room {
   public:
    double* of(long size) {
      if (size > size_) numbers_.reset(new double[size]), size_ = size;
      return numbers_.get();
    }

   private:
    std::unique_ptr<double[]> numbers_;
    long size_ = 0;
  };
  // B takes the place of A.
  void replaced() {
    std::swap(a_, b_);
    at_ = a_.of(0);
    given_ = nullptr;
  }

  // Rows of joined modes: their Gram matrix costs one pass. Complex ones cost four times as much.
  static constexpr long kJoined = kParts == 2 ? 16 : 32;
  static constexpr long kFew = 4, kJoinedToFew = 48;  // the same, where they are joined to so few
  // Longer sides are for random sketches, which what is left gains nothing by below kLarge entries.
  // Of real arrays they gain nothing up to more rows: their Gram matrices cost a fourth.
  static constexpr long kMost = kParts == 2 ? 96 : 256, kMostOfSmall = kParts == 2 ? 192 : 256;
  static constexpr long kMostBeside = 96, kMostBesideOfSmall = 192, kLarge = 1L << 17;
  static constexpr long kCopiedAtOnce = 1L << 14;  // entries
  static constexpr long kWhole = 24;   // sides from here on are first tested for their full rank
  // Sides from here on are tried for a low rank, of at most two thirds of them; the share of what a
  // bond may discard that such a basis may miss.
  static constexpr long kPivoted = 8;
  static constexpr double kMissed = 0.05;
  static constexpr double kRoom = 4;  // the noise given, beside that which was measured
  // Energies beside the largest down to which products with eigenvectors are orthogonal but for
  // roundoff of the result.
  static constexpr double kFlat = std::is_same_v<T, float> ? 1e-8 : 0.06;

  // Rows, or columns, that are split together: `side` of them, and modes from k on before `end`.
  long join(long side, long rest, long k, long end, long step) const {
    // A side no longer than the rank expected would stay whole: a pass over the data for nothing.
    const auto most = [&] { return side <= kFew ? kJoinedToFew : kJoined; };
    for (; k != end && side * n_[k] <= std::min(most(), rest / n_[k]); k += step) {
      side *= n_[k];
      rest /= n_[k];
    }
    return side;
  }

  // Gram matrix (rows × rows) of rows that lie so far apart, of so many entries.
  void gram_matrix(Team& team, long rows, long columns, long down, long along, Small* g) const {
    g->resize(rows * rows);
    as_matrix(rows, columns, down, along, [&](const auto& a) {
      wide_gram(team, a, reinterpret_cast<double*>(g->data()));
    });
  }

  // The leading subspace P (side × r) of what a bond of size `left` and the modes from *k on make up,
  // from their Gram matrix W. Calls each(k, rank before, rank after) with every core in u_.
  template <class Each>
  bool subspace(Small w, long left, long side, long* k, long step, Small* p, long* rank, bool* cut,
                const Each& each) {
    long r = left, done = left, after = side / left;
    Small g;
    do {
      const long n = n_[*k], m = r * n;
      after /= n;
      partial_trace(w, m, after, &g);
      long t = 0;
      if (!basis(m, &g, &t)) return false;
      each(*k, r, t);
      if (t < m && after > 1) w = projected(w, m, t, after);
      *cut = *cut || t < m;
      *p = done == left ? u_ : extended(*p, done, r, n, t);
      done *= n, r = t, *k += step;
    } while (after > 1);
    *rank = r;
    return true;
  }

  // A (rows × columns) = P B: cores from *first on make up P; B takes the place of A.
  bool split_wide(Team& team, long rows, long columns, long* first, long* left, int64_t* ranks,
                  T** out) {
    if (rows >= most_) return false;
    Small w, p;
    gram_matrix(team, rows, columns, columns, 1, &w);
    bool cut = false;
    const auto each = [&](long k, long before, long t) {
      ranks[k + 1] = t;
      put(u_.data(), before * n_[k] * t, *out);
      *out += whole_lines<T>(kParts * before * n_[k] * t);
    };
    if (!subspace(std::move(w), *left, rows, first, 1, &p, left, &cut, each)) return false;
    if (!cut) return true;
    double* const to = b_.of(kParts * *left * columns);
    const Numbers planes = in_planes(p, rows, *left);
    as_matrix(rows, columns, columns, 1, [&](const auto& a) {
      wide_project(team, a, kParts * *left, planes.data(), to);
    });
    replaced();
    return true;
  }

  // A (rows × columns) = B Pᵀ: P is a subspace of Aᵀ, whose modes are met in the opposite order; its
  // cores are those of modes up to *last. B takes the place of A.
  bool split_right(Team& team, long rows, long columns, long* last, long* right, int64_t* ranks) {
    if (columns >= most_) return false;
    std::vector<long> places(*right);  // of the columns of A, in the opposite order
    for (long a = 0; a < *right; a++) places[a] = a;
    for (long k = *last - 1, stride = *right; stride < columns; stride *= n_[k--]) {
      std::vector<long> more;
      for (const long place : places)
        for (long i = 0; i < n_[k]; i++) more.push_back(place + i * stride);
      std::swap(places, more);
    }
    Small g, w(columns * columns), p;
    gram_matrix(team, columns, rows, 1, columns, &g);
    for (long i = 0; i < columns; i++)
      for (long j = 0; j < columns; j++)
        w[i * columns + j] = g[places[i] * columns + places[j]];
    bool cut = false;
    long k = *last - 1, r = 0;
    const auto each = [&](long mode, long after, long t) {
      ranks[mode] = t;
      const long n = n_[mode];
      Small core(t * n * after);
      for (long a = 0; a < after; a++)
        for (long i = 0; i < n; i++)
          for (long b = 0; b < t; b++) core[(b * n + i) * after + a] = u_[(a * n + i) * t + b];
      rights_.push_back({t, n, after, in_rows(core, t, n * after)});
    };
    if (!subspace(std::move(w), *right, columns, &k, -1, &p, &r, &cut, each)) return false;
    *last = k + 1, *right = r;
    double* const to = b_.of(kParts * rows * r);
    if (cut) {
      Small v(columns * r);
      for (long i = 0; i < columns; i++)
        for (long b = 0; b < r; b++) v[places[i] * r + b] = conj(p[i * r + b]);
      const Numbers y = times_columns(rows, columns, in_rows(v, columns, r), r);
      in_planes_again(y, rows, r, to);
    } else {
      const double* from = planes(rows * columns);
      for (long i = 0; i < kParts * rows; i++)
        for (long j = 0; j < columns; j++) to[i * columns + j] = from[i * columns + places[j]];
    }
    replaced();
    return true;
  }

  // A V for V (columns × t), of rows as in complex_rows.h; the data are copied a few rows at a time.
  Numbers times_columns(long rows, long columns, const Numbers& v, long t) {
    constexpr bool kCopied = kParts == 2 || !std::is_same_v<T, double>;
    const long wide = kParts * padded(t);
    const bool copied = kCopied && given_;
    const long step = copied ? std::max(8L, kCopiedAtOnce / columns) : rows;
    Numbers y(rows * wide), some(copied ? kParts * std::min(step, rows) * columns : 0);
    const Numbers turned = kParts == 2 ? i_times(v, columns, t) : Numbers();
    for (long i = 0; i < rows; i += step) {
      const long count = std::min(step, rows - i);
      const double* from = copied ? some.data() : planes(rows * columns);
      if (copied)
        for (long part = 0; part < kParts; part++)
          gather(given_ + kParts * i * columns + part, kParts, count * columns,
                 some.data() + part * count * columns);
      double* const to = y.data() + i * wide;
      times(count, wide, columns, from, columns, 1, v.data(), wide, to, wide, panel_.data());
      if (kParts == 2)
        times(count, wide, columns, from + count * columns, columns, 1, turned.data(), wide, to,
              wide, panel_.data(), false, true);
    }
    return y;
  }

  // Rows as in complex_rows.h as planes, and back.
  static void in_planes_again(const Numbers& y, long rows, long t, double* planes) {
    for (long part = 0; part < kParts; part++)
      for (long i = 0; i < rows; i++)
        planes = put(&y[(i * kParts + part) * padded(t)], t, planes);
  }
  static Numbers rows_of_planes(const double* planes, long rows, long t) {
    Numbers y(rows * kParts * padded(t), 0.0);
    for (long part = 0; part < kParts; part++)
      for (long i = 0; i < rows; i++, planes += t)
        put(planes, t, &y[(i * kParts + part) * padded(t)]);
    return y;
  }

  // A in rows as in complex_rows.h, without planes of it first.
  Numbers rows_of_data(long rows, long columns) {
    if (!given_) return rows_of_planes(at_, rows, columns);
    Numbers y(rows * kParts * padded(columns), 0.0);
    for (long i = 0; i < rows; i++)
      for (long part = 0; part < kParts; part++)
        gather(given_ + kParts * i * columns + part, kParts, columns,
               &y[(i * kParts + part) * padded(columns)]);
    return y;
  }

  // Writes the core that is left, A (left·n × right), and those on the right: all but the last are
  // made orthonormal, and the norm goes there.
  void norm_to_the_right(long k, long left, long right, int64_t* ranks, T** out) {
    long rows = left * n_[k], t = right;
    const double* const from = planes(rows * t);
    if (rights_.empty()) {  // the last core, as it is
      for (long i = 0; i < rows; i++)
        for (long part = 0; part < kParts; part++) *(*out)++ = static_cast<T>(from[part * rows + i]);
      return;
    }
    Numbers y = rows_of_planes(from, rows, t);
    for (; !rights_.empty(); rights_.pop_back()) {
      const Right& next = rights_.back();
      const long kept = std::min(rows, t), across = next.n * next.after;
      Numbers r(kept * kParts * padded(t));
      if (rows > t) {
        orthonormalise(rows, t, &y, &r, nullptr);
      } else {
        std::swap(y, r);
        y.assign(rows * kParts * padded(rows), 0.0);
        for (long i = 0; i < rows; i++) y[i * kParts * padded(rows) + i] = 1;
      }
      *out = put_rows(y, rows, kept, *out);
      ranks[++k] = kept;
      Numbers core(kept * kParts * padded(across));
      multiplied(kept, t, across, r, next.rows, &core);
      rows = kept * next.n, t = next.after;
      y.assign(rows * kParts * padded(t), 0.0);
      for (long b = 0; b < kept; b++)
        for (long part = 0; part < kParts; part++)
          for (long i = 0; i < next.n; i++)
            put(&core[(b * kParts + part) * padded(across) + i * t], t,
                &y[((b * next.n + i) * kParts + part) * padded(t)]);
    }
    put_rows(y, rows, t, *out);
  }

  // Writes rows as in complex_rows.h as numbers of type T; returns where the next core begins.
  static T* put_rows(const Numbers& y, long rows, long t, T* to) {
    T* const next = to + whole_lines<T>(kParts * rows * t);
    const long wide = kParts * padded(t);
    for (long i = 0; i < rows; i++)
      for (long j = 0; j < t; j++)
        for (long part = 0; part < kParts; part++)
          *to++ = static_cast<T>(y[i * wide + part * padded(t) + j]);
    return next;
  }

  // P (rows × r) as the real matrix whose transpose takes the planes of A to those of Pᴴ A.
  static Numbers in_planes(const Small& p, long rows, long r) {
    Numbers out(kParts * rows * kParts * r);
    for (long i = 0; i < rows; i++)
      for (long b = 0; b < r; b++) {
        const S x = p[i * r + b];
        double* at = &out[i * kParts * r + b];
        at[0] = real(x);
        if constexpr (kParts == 2) {
          double* below = at + rows * kParts * r;
          at[r] = -x.im, below[0] = x.im, below[r] = x.re;
        }
      }
    return out;
  }

  // A (rows × columns) = Q B, of the Gram matrix of the columns. Rows of Y, V and R hold their real
  // parts, padded to whole vectors, then their imaginary ones.
  bool split_tall(Team& team, long k, long rows, long columns, int64_t* ranks, T** out) {
    if (columns >= most_) return false;
    Small g;
    gram_matrix(team, columns, rows, 1, columns, &g);
    for (S& x : g) x = conj(x);  // Aᵀ has the rows: (Aᵀ)(Aᵀ)ᴴ is the conjugate of AᴴA
    const Small known = g;
    long t = 0;
    if (!basis(columns, &g, &t)) return false;
    const long wide = kParts * padded(t);
    Numbers y, r(t * wide);
    if (t < columns) {
      const Numbers v = in_rows(u_, columns, t);
      y = times_columns(rows, columns, v, t);
      if (!(sharp_ && normalise(rows, t, kFlat, &y, &r)))
        orthonormalise(rows, t, &y, &r, nullptr);
      double* const to = b_.of(kParts * t * columns);  // B = R Vᴴ
      products(t, columns, wide, r.data(), v.data(), to);
      if (kParts == 2) {
        const Numbers turned = i_times(v, columns, t);
        products(t, columns, wide, r.data(), turned.data(), to + t * columns);
      }
    } else {
      y = rows_of_data(rows, columns);
      orthonormalise(rows, t, &y, &r, known.data());
      in_planes_again(r, t, columns, b_.of(kParts * t * columns));
    }
    *out = put_rows(y, rows, t, *out);
    replaced();
    ranks[k + 1] = t;
    return true;
  }

  // G (m × m) of W ((m, after) × (m, after)).
  static void partial_trace(const Small& w, long m, long after, Small* g) {
    g->assign(m * m, S{});
    for (long i = 0; i < m; i++)
      for (long j = 0; j < m; j++)
        for (long x = 0; x < after; x++)
          (*g)[i * m + j] += w[(i * after + x) * m * after + j * after + x];
  }

  // (U ⊗ 1)ᴴ W (U ⊗ 1).
  Small projected(const Small& w, long m, long t, long after) const {
    const long side = m * after, less = t * after;
    Small half(side * less), out(less * less);
    for (long i = 0; i < side; i++)
      for (long j = 0; j < m; j++)
        for (long b = 0; b < t; b++)
          for (long x = 0; x < after; x++)
            half[i * less + b * after + x] += u_[j * t + b] * w[i * side + j * after + x];
    for (long i = 0; i < m; i++)
      for (long b = 0; b < t; b++)
        for (long x = 0; x < after; x++)
          for (long j = 0; j < less; j++)
            out[(b * after + x) * less + j] += conj(u_[i * t + b]) * half[(i * after + x) * less + j];
    return out;
  }

  // P (done × r) times U ((r, n) × t), as ((done, n) × t).
  Small extended(const Small& p, long done, long r, long n, long t) const {
    Small out(done * n * t);
    for (long i = 0; i < done; i++)
      for (long a = 0; a < r; a++)
        for (long x = 0; x < n * t; x++) out[i * n * t + x] += p[i * r + a] * u_[a * n * t + x];
    return out;
  }

  template <class To>
  static To* put(const double* from, long count, To* to) {
    for (long i = 0; i < count; i++) to[i] = static_cast<To>(from[i]);
    return to + count;
  }
  template <class To>
  static To* put(const Complex* from, long count, To* to) {
    for (long i = 0; i < count; i++, to += 2)
      to[0] = static_cast<To>(from[i].re), to[1] = static_cast<To>(from[i].im);
    return to;
  }

  // The leading eigenvectors (m × t) of G in u_; the identity where all are needed.
  bool basis(long m, Small* g, long* t) {
    double total = 0;
    for (long i = 0; i < m; i++) total += real((*g)[i * m + i]);
    if (!std::isfinite(total)) return false;
    if (tail_ < 0) tail_ = share_ * total;
    // Next to roundoff energies may go only where none that stays is near what may go.
    const bool blurred = share_ < 2 * noise_;
    const double allowed = std::max(tail_ - (blurred ? noise_ / kRoom : noise_) * total, 0.0);
    *t = m;
    sharp_ = false;
    if (whole_ && m >= kWhole && definite(*g, m, tail_ + noise_ * total)) return unit(m);
    if (m >= kPivoted && !blurred && of_low_rank(m, *g, total, allowed, t)) return true;
    Numbers values(m);
    if (!eigenvectors(m, g, values.data())) return false;
    sharp_ = true;
    long gone = 0;
    for (double sum = std::max(values[0], 0.0); gone + 1 < m && sum <= allowed;)
      sum += std::max(values[++gone], 0.0);
    if (blurred && !(values[gone] > tail_ + noise_ * total)) return false;
    *t = m - gone;
    whole_ = whole_ && !gone;
    if (!gone) return unit(m);
    u_.resize(m * *t);
    // LAPACK reads columns, so of the conjugate of G.
    for (long b = 0; b < *t; b++)
      for (long i = 0; i < m; i++) u_[i * *t + b] = conj((*g)[(m - 1 - b) * m + i]);
    return true;
  }

  // As `basis`, of a rank so low that Cholesky's factorisation with pivots meets most of the energy
  // in few steps: G = LᴴL + E with E ≥ 0, so that the range of Lᴴ misses no more than the trace of E.
  // The eigenproblem is then one of so many rows. False if it takes too many steps.
  bool of_low_rank(long m, const Small& g, double total, double allowed, long* t) {
    const double enough = kMissed * allowed, least = noise_ * total;
    PivotedRows<S> rows(m, m, g.data());
    Small l;
    long rank = 0;
    double missed = total;
    for (; missed > enough; rank++, missed = rows.missed()) {
      if (3 * rank >= 2 * m) return false;
      // Early on: a flat spectrum loses its energy in equal steps.
      if (rank == m / 4 && missed * 2 * m > total * (2 * m - 3 * rank)) return false;
      l.resize((rank + 1) * m);
      if (!rows.add(rank, least, l.data())) return false;
    }
    if (!rank) return false;
    const Numbers rows_of_l = in_rows(l, rank, m);
    Small square = squared(rows_of_l, rank, m);
    Numbers values(rank);
    if (!eigenvectors(rank, &square, values.data())) return false;
    long gone = 0;
    for (double sum = missed + std::max(values[0], 0.0); gone + 1 < rank && sum <= allowed;)
      sum += std::max(values[++gone], 0.0);
    *t = rank - gone;
    whole_ = false;
    const long ld = kParts * padded(m), wide = kParts * padded(*t);
    Small weights(rank * *t);  // the leading eigenvectors: LAPACK reads columns, as below
    for (long a = 0; a < rank; a++)
      for (long b = 0; b < *t; b++) weights[a * *t + b] = conj(square[(rank - 1 - b) * rank + a]);
    const Numbers w = in_rows(weights, rank, *t);
    Numbers y(m * wide), r(*t * wide);  // Lᴴ times them
    times(m, wide, rank, rows_of_l.data(), 1, ld, w.data(), wide, y.data(), wide, panel_.data());
    if (kParts == 2) {
      Numbers turned = i_times(w, rank, *t);
      for (double& x : turned) x = -x;
      times(m, wide, rank, rows_of_l.data() + padded(m), 1, ld, turned.data(), wide, y.data(), wide,
            panel_.data(), false, true);
    }
    orthonormalise(m, *t, &y, &r, nullptr);
    u_ = out_of_rows(y, m, *t);
    return true;
  }

  // L Lᴴ for L (rank × m) of rows as in complex_rows.h.
  static Small squared(const Numbers& l, long rank, long m) {
    Small out(rank * rank);
    Numbers part(rank * rank);
    products(rank, rank, kParts * padded(m), l.data(), l.data(), part.data());
    for (long i = 0; i < rank * rank; i++) out[i] = S{part[i]};
    if constexpr (kParts == 2) {
      const Numbers turned = i_times(l, rank, m);
      products(rank, rank, kParts * padded(m), l.data(), turned.data(), part.data());
      for (long i = 0; i < rank * rank; i++) out[i].im = part[i];
    }
    return out;
  }

  static Small out_of_rows(const Numbers& y, long rows, long t) {
    Small out(rows * t);
    const long ld = padded(t);
    for (long i = 0; i < rows; i++)
      for (long b = 0; b < t; b++) {
        const double* at = &y[i * kParts * ld + b];
        if constexpr (kParts == 1)
          out[i * t + b] = at[0];
        else
          out[i * t + b] = {at[0], at[ld]};
      }
    return out;
  }

  // Eigenvalues of G, ascending, and eigenvectors in its place, by LAPACK.
  bool eigenvectors(long m, Small* g, double* values) const {
    char job = 'V', half = 'L';
    std::vector<int> integers(3 + 5 * m);
    Numbers work(1 + 6 * m + 2 * m * m), more(kParts == 2 ? kParts * (2 * m + m * m) : 0);
    int n = m, info = 0, size = work.size(), few = integers.size(), complex = more.size() / 2;
    double* at = reinterpret_cast<double*>(g->data());
    if constexpr (kParts == 1)
      lapack_.syevd(&job, &half, &n, at, &n, values, work.data(), &size, integers.data(), &few, &info);
    else
      lapack_.heevd(&job, &half, &n, at, &n, values, more.data(), &complex, work.data(), &size,
                    integers.data(), &few, &info);
    return !info;
  }

  bool unit(long m) {
    u_.assign(m * m, S{});
    for (long i = 0; i < m; i++) u_[i * m + i] = S{1};
    return true;
  }

  // Whether G − by is positive definite, by Cholesky's factorisation: all of G is needed then.
  static bool definite(const Small& g, long m, double by) {
    Small l = g;
    for (long k = 0; k < m; k++) {
      S* row = &l[k * m];
      for (long j = 0; j < k; j++) {
        const S* above = &l[j * m];
        const S factor = S{-1} * conj(above[k]);
        for (long i = k; i < m; i++) row[i] += factor * above[i];
      }
      const double pivot = real(row[k]) - by;
      if (!(pivot > 0)) return false;
      const double scale = 1 / std::sqrt(pivot);
      row[k] = S{pivot};
      for (long i = k; i < m; i++) row[i] = S{scale} * row[i];
    }
    return true;
  }

  const std::vector<long>& n_;
  const double share_, noise_;
  const Lapack& lapack_;
  long most_ = kMost;
  double tail_ = -1;
  bool whole_ = true, sharp_ = false;  // whether the basis is of eigenvectors up to roundoff
  const T* given_ = nullptr;    // A, where it is the data themselves
  const double* at_ = nullptr;  // A elsewhere
  Room a_, b_;
  Small u_;
  std::vector<Right> rights_;  // from the last mode on
};

}  // namespace tensorjax
