// TT-SVD of a small dense array by Gram matrices, in double precision; see
// tensorjax/tt/_tt_svd/small_arrays.py.
//
// From the left. Of an unfolding with few rows the next modes are joined to them, and one Gram
// matrix serves the bonds of all: that of an earlier bond is a partial trace of it, so the array is
// read twice for several bonds. Of a tall unfolding the Gram matrix of its columns is taken; the
// core is then made orthonormal by reflections, for A V loses that as the singular values fall.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "householder.h"
#include "lapack.h"
#include "overlaps.h"
#include "passes.h"
#include "products.h"
#include "team.h"

namespace tensorjax {

class SmallTTSVD {
 public:
  // n: the modes; share: of the energy, for each bond; noise: that of a Gram matrix, as a share.
  SmallTTSVD(const std::vector<long>& n, double share, double noise, const Lapack& lapack)
      : n_(n), share_(share), noise_(noise), lapack_(lapack) {}

  // Writes the cores to `out`, one after another, and their ranks (d + 1). False where a side is
  // longer than these eigenproblems are good for, or an entry is not finite.
  template <class T>
  bool run(Team& team, const T* x, int64_t* ranks, T* out) {
    const long d = static_cast<long>(n_.size());
    long rest = 1, left = 1;
    for (const long n : n_) rest *= n;
    start(x, rest);
    most_ = rest < kLarge ? kMostOfSmall : kMost;
    ranks[0] = ranks[d] = 1;
    for (long k = 0; k + 1 < d; left = ranks[k]) {
      const long rows = left * n_[k], columns = rest / n_[k];
      const long first = k;
      if (rows <= columns) {
        const long joined = join(rows, columns, &k);
        if (!split_wide(team, first, k, left, joined, left * rest / joined, ranks, &out)) return false;
      } else if (!split_tall(team, k++, rows, columns, ranks, &out)) {
        return false;
      }
      for (long j = first; j < k; j++) rest /= n_[j];
    }
    std::copy(at_, at_ + left * n_[d - 1], out);
    return true;
  }

 private:
  // A is the data themselves until something is cut: small arrays cost as much to copy.
  void start(const double* x, long) { at_ = x; }
  void start(const float* x, long size) {
    a_.assign(x, x + size);
    at_ = a_.data();
  }
  // B takes the place of A.
  void replaced() {
    std::swap(a_, b_);
    at_ = a_.data();
  }

  static constexpr long kJoined = 32;  // rows of joined modes: their Gram matrix costs one pass
  // Longer sides are for random sketches, which arrays of fewer entries than kLarge gain nothing by.
  static constexpr long kMost = 96, kMostOfSmall = 160, kLarge = 1L << 17;
  static constexpr long kWhole = 24;   // sides from here on are first tested for their full rank
  // Squared sines of the angle to the columns before: above kUpright one pass is exact enough, above
  // kSafe two.
  static constexpr double kUpright = 0.5, kSafe = 1.5e-6;

  // Rows of the unfolding after the modes from `*k` on that are split together; *k: the next mode.
  long join(long rows, long columns, long* k) const {
    const long last = static_cast<long>(n_.size()) - 1;
    for (++*k; *k < last && rows * n_[*k] <= std::min(kJoined, columns / n_[*k]); ++*k) {
      rows *= n_[*k];
      columns /= n_[*k];
    }
    return rows;
  }

  // A (rows × columns) = P B: cores `first` to `last` − 1 make up P; B takes the place of A.
  template <class T>
  bool split_wide(Team& team, long first, long last, long left, long rows, long columns,
                  int64_t* ranks, T** out) {
    if (rows >= most_) return false;
    Numbers w(rows * rows), p(left * left, 0.0), g;
    for (long i = 0; i < left; i++) p[i * left + i] = 1;
    wide_gram(team, Matrix<double>{at_, rows, columns, 1, columns, 1}, w.data());
    bool cut = false;
    long r = left, done = left, after = rows / left;
    for (long k = first; k < last; k++) {
      const long n = n_[k], m = r * n;
      after /= n;
      partial_trace(w, m, after, &g);
      long t = 0;
      if (!basis(m, &g, &t)) return false;
      ranks[k + 1] = t;
      *out = put(u_, m * t, *out);
      if (t < m && k + 1 < last) w = projected(w, m, t, after);
      cut = cut || t < m;
      p = extended(p, done, r, n, t);
      done *= n, r = t;
    }
    if (!cut) return true;
    b_.resize(r * columns);
    wide_project(team, rows, columns, r, p.data(), at_, b_.data());
    replaced();
    return true;
  }

  // A (rows × columns) = Q B, of the Gram matrix of the columns.
  template <class T>
  bool split_tall(Team& team, long k, long rows, long columns, int64_t* ranks, T** out) {
    if (columns >= most_) return false;
    Numbers g(columns * columns);
    wide_gram(team, Matrix<double>{at_, columns, rows, 1, 1, columns}, g.data());
    const Numbers known = g;
    long t = 0;
    if (!basis(columns, &g, &t)) return false;
    const long ld = padded(t);
    Numbers y(rows * ld), v(columns * ld, 0.0), r(t * ld);
    for (long i = 0; i < columns; i++) std::copy(&u_[i * t], &u_[i * t] + t, &v[i * ld]);
    if (t < columns)
      times(rows, ld, columns, at_, columns, 1, v.data(), ld, y.data(), ld, panel_.data());
    else
      for (long i = 0; i < rows; i++) put(at_ + i * columns, columns, &y[i * ld]);
    orthonormalise(rows, t, &y, &r, t < columns ? nullptr : known.data());
    for (long i = 0; i < rows; i++) *out = put(&y[i * ld], t, *out);
    if (t < columns) {  // B = R Vᵀ
      b_.resize(t * columns);
      for (long i = 0; i < t; i += kSide)
        for (long j = 0; j < columns; j += kSide)
          inner(std::min(kSide, t - i), std::min(kSide, columns - j), ld, &r[i * ld], ld, &v[j * ld],
                ld, &b_[i * columns + j], columns);
    } else {
      b_.resize(t * columns);
      for (long i = 0; i < t; i++) put(&r[i * ld], columns, &b_[i * columns]);
    }
    replaced();
    ranks[k + 1] = t;
    return true;
  }

  // Y (rows × t) = Q R; Q takes the place of Y. By Cholesky's factorisation of the Gram matrix of
  // columns of length one, twice unless they are nearly orthogonal; by reflections where roundoff
  // would take too much of it. See `orthonormalized` of tensorjax/linalg/_subspaces_on_host.py.
  // known: YᵀY (t × t), if the caller has it.
  void orthonormalise(long rows, long t, Numbers* y, Numbers* r, const double* known) {
    const long ld = padded(t);
    Numbers q(rows * ld), g(t * ld), inverse(t * ld), none(t, 0.0), pivots(t), sizes(ld, 0.0);
    for (int pass = 0; pass < 2; pass++) {
      if (pass == 0 && known)
        for (long i = 0; i < t; i++) std::copy(known + i * t, known + (i + 1) * t, &g[i * ld]);
      else
        gram(rows, t, y->data(), ld, g.data(), ld, panel_.data());
      if (pass == 0)
        for (long j = 0; j < t; j++) sizes[j] = std::sqrt(g[j * ld + j]);
      if (pass == 0)
        for (long i = 0; i < t; i++)
          for (long j = i; j < t; j++) g[i * ld + j] /= sizes[i] * sizes[j];
      inverse_factor(t, g.data(), ld, none.data(), inverse.data(), pivots.data());
      const double least = *std::min_element(pivots.begin(), pivots.end());
      if (!(least > kSafe)) return reflected(rows, t, y, r, pass > 0);
      for (long i = 0; i < t; i++)
        for (long j = 0; j < ld; j++) {
          if (j < i || j >= t) g[i * ld + j] = inverse[i * ld + j] = 0;
          else if (pass == 0) g[i * ld + j] *= sizes[j], inverse[i * ld + j] /= sizes[i];
        }
      times(rows, ld, t, y->data(), ld, 1, inverse.data(), ld, q.data(), ld, panel_.data(), true);
      std::swap(*y, q);
      update(t, g, r, pass > 0);
      if (least > kUpright) return;
    }
  }

  // R becomes `factor`, or `factor` R.
  void update(long t, const Numbers& factor, Numbers* r, bool again) {
    const long ld = padded(t);
    if (!again) {
      *r = factor;
      return;
    }
    Numbers out(t * ld);
    times(t, ld, t, factor.data(), ld, 1, r->data(), ld, out.data(), ld, panel_.data());
    std::swap(*r, out);
  }

  void reflected(long rows, long t, Numbers* y, Numbers* r, bool again) {
    const long ld = padded(t);
    Numbers q(rows * ld), factor(t * ld), scratch((rows + 1) * t);
    householder(rows, t, t, y->data(), ld, q.data(), ld, factor.data(), ld, scratch.data());
    std::swap(*y, q);
    update(t, factor, r, again);
  }

  // G (m × m) of W ((m, after) × (m, after)).
  static void partial_trace(const Numbers& w, long m, long after, Numbers* g) {
    g->assign(m * m, 0.0);
    for (long i = 0; i < m; i++)
      for (long j = 0; j < m; j++)
        for (long x = 0; x < after; x++)
          (*g)[i * m + j] += w[(i * after + x) * m * after + j * after + x];
  }

  // (U ⊗ 1)ᵀ W (U ⊗ 1).
  Numbers projected(const Numbers& w, long m, long t, long after) const {
    const long side = m * after, less = t * after;
    Numbers half(side * less, 0.0), out(less * less, 0.0);
    for (long i = 0; i < side; i++)
      for (long j = 0; j < m; j++)
        for (long b = 0; b < t; b++)
          for (long x = 0; x < after; x++)
            half[i * less + b * after + x] += u_[j * t + b] * w[i * side + j * after + x];
    for (long i = 0; i < m; i++)
      for (long b = 0; b < t; b++)
        for (long x = 0; x < after; x++)
          for (long j = 0; j < less; j++)
            out[(b * after + x) * less + j] += u_[i * t + b] * half[(i * after + x) * less + j];
    return out;
  }

  // P (done × r) times U ((r, n) × t), as ((done, n) × t).
  Numbers extended(const Numbers& p, long done, long r, long n, long t) const {
    Numbers out(done * n * t, 0.0);
    for (long i = 0; i < done; i++)
      for (long a = 0; a < r; a++)
        for (long x = 0; x < n * t; x++) out[i * n * t + x] += p[i * r + a] * u_[a * n * t + x];
    return out;
  }

  template <class T>
  static T* put(const double* from, long count, T* to) {
    for (long i = 0; i < count; i++) to[i] = static_cast<T>(from[i]);
    return to + count;
  }
  template <class T>
  static T* put(const Numbers& from, long count, T* to) {
    return put(from.data(), count, to);
  }

  // The leading eigenvectors (m × t) of G in u_; the identity where all are needed.
  bool basis(long m, Numbers* g, long* t) {
    double total = 0;
    for (long i = 0; i < m; i++) total += (*g)[i * m + i];
    if (!std::isfinite(total)) return false;
    if (tail_ < 0) tail_ = share_ * total;
    const double allowed = std::max(tail_ - noise_ * total, 0.0);
    *t = m;
    if (whole_ && m >= kWhole && definite(*g, m, tail_ + noise_ * total)) return unit(m);
    Numbers values(m), work(1 + 6 * m + 2 * m * m);
    std::vector<int> integers(3 + 5 * m);
    char job = 'V', half = 'L';
    int n = m, info = 0, size = work.size(), few = integers.size();
    lapack_.syevd(&job, &half, &n, g->data(), &n, values.data(), work.data(), &size,
                  integers.data(), &few, &info);
    if (info) return false;
    long gone = 0;
    for (double sum = std::max(values[0], 0.0); gone + 1 < m && sum <= allowed;)
      sum += std::max(values[++gone], 0.0);
    *t = m - gone;
    whole_ = whole_ && !gone;
    if (!gone) return unit(m);
    u_.resize(m * *t);
    for (long b = 0; b < *t; b++)
      for (long i = 0; i < m; i++) u_[i * *t + b] = (*g)[(m - 1 - b) * m + i];
    return true;
  }

  bool unit(long m) {
    u_.assign(m * m, 0.0);
    for (long i = 0; i < m; i++) u_[i * m + i] = 1;
    return true;
  }

  // Whether G − by is positive definite, by Cholesky's factorisation: all of G is needed then.
  static bool definite(const Numbers& g, long m, double by) {
    Numbers l = g;
    for (long k = 0; k < m; k++) {
      double* row = &l[k * m];
      for (long j = 0; j < k; j++) {
        const double* above = &l[j * m];
        const double factor = above[k];
        for (long i = k; i < m; i++) row[i] -= factor * above[i];
      }
      const double pivot = row[k] - by;
      if (!(pivot > 0)) return false;
      const double scale = 1 / std::sqrt(pivot);
      row[k] = pivot;
      for (long i = k; i < m; i++) row[i] *= scale;
    }
    return true;
  }

  const std::vector<long>& n_;
  const double share_, noise_;
  const Lapack& lapack_;
  long most_ = kMost;
  double tail_ = -1;
  bool whole_ = true;
  const double* at_ = nullptr;  // A
  Numbers a_, b_, u_, panel_ = Numbers(3 * kLanes * kDepth);
};

}  // namespace tensorjax
