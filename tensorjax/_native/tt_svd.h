// TT-SVD of a small dense array by Gram matrices, in double precision; see
// tensorjax/tt/_tt_svd/small_arrays.py.
//
// From the left. Of an unfolding with few rows the next modes are joined to them, and one Gram
// matrix serves the bonds of all: that of an earlier bond is a partial trace of it, so the array is
// read twice for several bonds. Of a tall unfolding the Gram matrix of its columns is taken; the
// core is then made orthonormal by reflections, for A V loses that as the singular values fall.
//
// Complex arrays are held as two planes, of real and of imaginary parts, so that all products are
// those of real matrices; see complex_rows.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "complex_rows.h"
#include "householder.h"
#include "lapack.h"
#include "overlaps.h"
#include "passes.h"
#include "products.h"
#include "team.h"

namespace tensorjax {

// kParts: 1 of real arrays, 2 of complex ones.
template <long kParts>
class SmallTTSVD {
 public:
  // n: the modes; share: of the energy, for each bond; noise: that of a Gram matrix, as a share.
  SmallTTSVD(const std::vector<long>& n, double share, double noise, const Lapack& lapack)
      : n_(n), share_(share), noise_(noise), lapack_(lapack) {}

  // Writes the cores to `out`, one after another, each a whole number of cache lines on, and their
  // ranks (d + 1). False where a side is longer than these eigenproblems are good for, or an entry
  // is not finite. T: of a part.
  template <class T>
  bool run(Team& team, const T* x, int64_t* ranks, T* out) {
    const long d = static_cast<long>(n_.size());
    long rest = 1, left = 1;
    for (const long n : n_) rest *= n;
    start(x, rest);
    ranks[0] = ranks[d] = 1;
    for (long k = 0; k + 1 < d; left = ranks[k]) {
      const long rows = left * n_[k], columns = rest / n_[k];
      const long first = k;
      most_ = rows * columns < kLarge ? kMostOfSmall : kMost;
      if (rows <= columns) {
        const long joined = join(rows, columns, &k);
        if (!split_wide(team, first, k, left, joined, left * rest / joined, ranks, &out)) return false;
      } else if (!split_tall(team, k++, rows, columns, ranks, &out)) {
        return false;
      }
      for (long j = first; j < k; j++) rest /= n_[j];
    }
    const long last = left * n_[d - 1];
    for (long i = 0; i < last; i++)
      for (long part = 0; part < kParts; part++) *out++ = static_cast<T>(at_[part * last + i]);
    return true;
  }

 private:
  using S = std::conditional_t<kParts == 2, Complex, double>;
  using Small = std::vector<S>;

  // A is the data themselves until something is cut: small arrays cost as much to copy.
  template <class T>
  void start(const T* x, long size) {
    if constexpr (kParts == 1 && std::is_same_v<T, double>) {
      at_ = x;
    } else {
      a_.resize(kParts * size);
      for (long i = 0; i < size; i++)
        for (long part = 0; part < kParts; part++) a_[part * size + i] = x[kParts * i + part];
      at_ = a_.data();
    }
  }
  // B takes the place of A.
  void replaced() {
    std::swap(a_, b_);
    at_ = a_.data();
  }

  static constexpr long kJoined = 32;  // rows of joined modes: their Gram matrix costs one pass
  // Longer sides are for random sketches, which what is left gains nothing by below kLarge entries.
  static constexpr long kMost = 96, kMostOfSmall = 192, kLarge = 1L << 17;
  static constexpr long kWhole = 24;   // sides from here on are first tested for their full rank
  // Sides from here on are tried for a low rank, of one part in kSteps at most; the share of what a
  // bond may discard that such a basis may miss.
  static constexpr long kPivoted = 8, kSteps = 3;
  static constexpr double kMissed = 0.05;
  // Squared sines of the angle to the columns before: above kUpright one pass is exact enough, above
  // kSafe two.
  static constexpr double kUpright = 0.5, kSafe = 1.5e-6;
  // Smallest energy of a direction beside the largest at which roundoff of the products with
  // eigenvectors is below that of single precision.
  static constexpr double kSharp = 1e-8;

  // Rows of the unfolding after the modes from `*k` on that are split together; *k: the next mode.
  long join(long rows, long columns, long* k) const {
    const long last = static_cast<long>(n_.size()) - 1;
    for (++*k; *k < last && rows * n_[*k] <= std::min(kJoined, columns / n_[*k]); ++*k) {
      rows *= n_[*k];
      columns /= n_[*k];
    }
    return rows;
  }

  // Gram matrix (rows × rows) of rows that lie so far apart, of so many entries.
  void gram_matrix(Team& team, long rows, long columns, long down, long along, Small* g) const {
    g->resize(rows * rows);
    const Matrix<double> a{at_, rows, columns, kParts, down, along, kParts == 2 ? rows * columns : 1};
    wide_gram(team, a, reinterpret_cast<double*>(g->data()));
  }

  // A (rows × columns) = P B: cores `first` to `last` − 1 make up P; B takes the place of A.
  template <class T>
  bool split_wide(Team& team, long first, long last, long left, long rows, long columns,
                  int64_t* ranks, T** out) {
    if (rows >= most_) return false;
    Small w, p(left * left), g;
    for (long i = 0; i < left; i++) p[i * left + i] = S{1};
    gram_matrix(team, rows, columns, columns, 1, &w);
    bool cut = false;
    long r = left, done = left, after = rows / left;
    for (long k = first; k < last; k++) {
      const long n = n_[k], m = r * n;
      after /= n;
      partial_trace(w, m, after, &g);
      long t = 0;
      if (!basis(m, &g, &t)) return false;
      ranks[k + 1] = t;
      put(u_.data(), m * t, *out);
      *out += whole_lines<T>(kParts * m * t);
      if (t < m && k + 1 < last) w = projected(w, m, t, after);
      cut = cut || t < m;
      p = extended(p, done, r, n, t);
      done *= n, r = t;
    }
    if (!cut) return true;
    b_.resize(kParts * r * columns);
    const Numbers planes = in_planes(p, rows, r);
    wide_project(team, kParts * rows, columns, kParts * r, planes.data(), at_, b_.data());
    replaced();
    return true;
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
  template <class T>
  bool split_tall(Team& team, long k, long rows, long columns, int64_t* ranks, T** out) {
    if (columns >= most_) return false;
    Small g;
    gram_matrix(team, columns, rows, 1, columns, &g);
    for (S& x : g) x = conj(x);  // Aᵀ has the rows: (Aᵀ)(Aᵀ)ᴴ is the conjugate of AᴴA
    const Small known = g;
    long t = 0;
    if (!basis(columns, &g, &t)) return false;
    const long wide = kParts * padded(t);
    Numbers y(rows * wide, 0.0), r(t * wide);
    if (t < columns) {
      const Numbers v = in_rows(u_, columns, t);
      const Numbers turned = kParts == 2 ? i_times(v, columns, t) : Numbers{};
      times(rows, wide, columns, at_, columns, 1, v.data(), wide, y.data(), wide, panel_.data());
      if (kParts == 2)
        times(rows, wide, columns, at_ + rows * columns, columns, 1, turned.data(), wide, y.data(),
              wide, panel_.data(), false, true);
      if (!(std::is_same_v<T, float> && sharp_ && normalise(rows, t, &y, &r)))
        orthonormalise(rows, t, &y, &r, nullptr);
      b_.resize(kParts * t * columns);  // B = R Vᴴ
      products(t, columns, wide, r.data(), v.data(), b_.data());
      if (kParts == 2) products(t, columns, wide, r.data(), turned.data(), &b_[t * columns]);
    } else {
      for (long i = 0; i < rows; i++)
        for (long part = 0; part < kParts; part++)
          put(at_ + (part * rows + i) * columns, columns, &y[i * wide + part * padded(t)]);
      orthonormalise(rows, t, &y, &r, known.data());
      b_.resize(kParts * t * columns);
      for (long part = 0; part < kParts; part++)
        for (long i = 0; i < t; i++)
          put(&r[i * wide + part * padded(t)], columns, &b_[(part * t + i) * columns]);
    }
    T* to = *out;
    for (long i = 0; i < rows; i++)
      for (long j = 0; j < t; j++)
        for (long part = 0; part < kParts; part++)
          *to++ = static_cast<T>(y[i * wide + part * padded(t) + j]);
    *out += whole_lines<T>(kParts * rows * t);
    replaced();
    ranks[k + 1] = t;
    return true;
  }

  // C (rows × columns) = X Yᵀ of real matrices of rows of `depth`.
  static void products(long rows, long columns, long depth, const double* x, const double* y,
                       double* c) {
    for (long i = 0; i < rows; i += kSide)
      for (long j = 0; j < columns; j += kSide)
        inner(std::min(kSide, rows - i), std::min(kSide, columns - j), depth, x + i * depth, depth,
              y + j * depth, depth, c + i * columns + j, columns);
  }

  // C (rows × t) = X Y, Y (t × t): all with rows as above.
  void multiplied(long rows, long t, const Numbers& x, const Numbers& y, Numbers* c, bool upper) {
    const long ld = padded(t), wide = kParts * ld;
    if (kParts == 1) {
      times(rows, ld, t, x.data(), ld, 1, y.data(), ld, c->data(), ld, panel_.data(), upper);
      return;
    }
    const Numbers turned = i_times(y, t, t);
    times(rows, wide, t, x.data(), wide, 1, y.data(), wide, c->data(), wide, panel_.data());
    times(rows, wide, t, x.data() + ld, wide, 1, turned.data(), wide, c->data(), wide,
          panel_.data(), false, true);
  }

  // G = YᴴY (t × t), of which the diagonal and what is above it are meant.
  void columns_gram(long rows, long t, const Numbers& y, Small* g) {
    const long ld = padded(t), wide = kParts * ld;
    Numbers h(wide * wide);
    gram(rows, wide, y.data(), wide, h.data(), wide, panel_.data());
    for (long i = 0; i < t; i++)
      for (long j = i; j < t; j++) {
        S& x = (*g)[i * t + j];
        if constexpr (kParts == 1)
          x = h[i * ld + j];
        else
          x = {h[i * wide + j] + h[(ld + i) * wide + ld + j],
               h[i * wide + ld + j] - h[j * wide + ld + i]};
      }
  }

  // Y (rows × t) = Q R with a diagonal R, for Y = A V with eigenvectors V: its columns are orthogonal
  // but for roundoff of the largest beside the smallest. False where single precision would show it.
  static bool normalise(long rows, long t, Numbers* y, Numbers* r) {
    const long ld = padded(t), wide = kParts * ld;
    Numbers squares(ld, 0.0), inverse(ld, 0.0);
    for (long i = 0; i < rows; i++)
      for (long part = 0; part < kParts; part++) {
        const double* row = y->data() + i * wide + part * ld;
        for (long j = 0; j < t; j++) squares[j] += row[j] * row[j];
      }
    const auto [least, most] = std::minmax_element(squares.begin(), squares.begin() + t);
    if (!(*least > kSharp * *most)) return false;
    for (long j = 0; j < t; j++) {
      (*r)[j * wide + j] = std::sqrt(squares[j]);
      inverse[j] = 1 / (*r)[j * wide + j];
    }
    for (long i = 0; i < kParts * rows; i++)
      for (long j = 0; j < t; j++) (*y)[i * ld + j] *= inverse[j];
    return true;
  }

  // Y (rows × t) = Q R; Q takes the place of Y. By Cholesky's factorisation of the Gram matrix of
  // columns of length one, twice unless they are nearly orthogonal; by reflections where roundoff
  // would take too much of it. See `orthonormalized` of tensorjax/linalg/_qr.py.
  // known: YᴴY (t × t), if the caller has it.
  //
  // Of a complex G the real matrix of blocks (a, −b; b, a) is factored, one for every entry a + ib:
  // its factor is that of G in the same blocks, for the factor of G has a real diagonal.
  void orthonormalise(long rows, long t, Numbers* y, Numbers* r, const S* known) {
    const long wide = kParts * padded(t), side = kParts * t, ld = padded(side);
    Numbers q(rows * wide), h(side * ld, 0.0), inverse(side * ld), none(side, 0.0), pivots(side);
    Numbers sizes(t, 1.0), factor(t * wide), back(t * wide);
    Small g(t * t);
    for (int pass = 0; pass < 2; pass++) {
      if (pass == 0 && known)
        std::copy(known, known + t * t, g.begin());
      else
        columns_gram(rows, t, *y, &g);
      if (pass == 0)
        for (long j = 0; j < t; j++) sizes[j] = std::sqrt(real(g[j * t + j]));
      for (long i = 0; i < t; i++)
        for (long j = i; j < t; j++) {
          const double by = pass == 0 ? 1 / (sizes[i] * sizes[j]) : 1;
          for (long part = 0; part < kParts; part++)
            for (long other = 0; other < kParts; other++)
              h[(kParts * i + part) * ld + kParts * j + other] =
                  by * block(g[i * t + j], part, other);
        }
      inverse_factor(side, h.data(), ld, none.data(), inverse.data(), pivots.data());
      const double least = *std::min_element(pivots.begin(), pivots.end());
      if (!(least > kSafe)) return reflected(rows, t, y, r, pass > 0);
      for (long i = 0; i < t; i++)
        for (long j = 0; j < wide; j++) {
          const long part = j / padded(t), column = j % padded(t);
          const long at = (kParts * i + part) * ld + kParts * column;
          const bool some = column >= i && column < t;
          factor[i * wide + j] = some ? h[at] * (pass == 0 ? sizes[column] : 1) : 0;
          back[i * wide + j] = some ? inverse[at] / (pass == 0 ? sizes[i] : 1) : 0;
        }
      multiplied(rows, t, *y, back, &q, true);
      std::swap(*y, q);
      update(t, factor, r, pass > 0);
      if (least > kUpright) return;
    }
  }

  // An entry of the real block that stands for a number; that of real numbers is their own.
  static double block(double x, long, long) { return x; }
  static double block(Complex x, long row, long column) {
    return row == column ? x.re : row ? x.im : -x.im;
  }

  // R becomes `factor`, or `factor` R.
  void update(long t, const Numbers& factor, Numbers* r, bool again) {
    if (!again) {
      *r = factor;
      return;
    }
    Numbers out(r->size());
    multiplied(t, t, factor, *r, &out, false);
    std::swap(*r, out);
  }

  // As `orthonormalise`, by reflections.
  void reflected(long rows, long t, Numbers* y, Numbers* r, bool again) {
    Numbers factor(t * kParts * padded(t));
    if constexpr (kParts == 2) {
      complex_householder(rows, t, y, &factor);
    } else {
      const long ld = padded(t);
      Numbers q(rows * ld), scratch((rows + 1) * t);
      householder(rows, t, t, y->data(), ld, q.data(), ld, factor.data(), ld, scratch.data());
      std::swap(*y, q);
    }
    update(t, factor, r, again);
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

  template <class T>
  static T* put(const double* from, long count, T* to) {
    for (long i = 0; i < count; i++) to[i] = static_cast<T>(from[i]);
    return to + count;
  }
  template <class T>
  static T* put(const Complex* from, long count, T* to) {
    for (long i = 0; i < count; i++, to += 2)
      to[0] = static_cast<T>(from[i].re), to[1] = static_cast<T>(from[i].im);
    return to;
  }

  // The leading eigenvectors (m × t) of G in u_; the identity where all are needed.
  bool basis(long m, Small* g, long* t) {
    double total = 0;
    for (long i = 0; i < m; i++) total += real((*g)[i * m + i]);
    if (!std::isfinite(total)) return false;
    if (tail_ < 0) tail_ = share_ * total;
    const double allowed = std::max(tail_ - noise_ * total, 0.0);
    *t = m;
    sharp_ = false;
    if (whole_ && m >= kWhole && definite(*g, m, tail_ + noise_ * total)) return unit(m);
    if (m >= kPivoted && of_low_rank(m, *g, total, allowed, t)) return true;
    Numbers values(m);
    if (!eigenvectors(m, g, values.data())) return false;
    sharp_ = true;
    long gone = 0;
    for (double sum = std::max(values[0], 0.0); gone + 1 < m && sum <= allowed;)
      sum += std::max(values[++gone], 0.0);
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
      if (rank * kSteps >= m) return false;
      l.resize((rank + 1) * m);
      if (!rows.add(rank, least, l.data())) return false;
    }
    if (!rank) return false;
    Small inner(rank * rank);  // L Lᴴ
    for (long a = 0; a < rank; a++)
      for (long b = 0; b < rank; b++)
        for (long i = 0; i < m; i++) inner[a * rank + b] += l[a * m + i] * conj(l[b * m + i]);
    Numbers values(rank);
    if (!eigenvectors(rank, &inner, values.data())) return false;
    long gone = 0;
    for (double sum = missed + std::max(values[0], 0.0); gone + 1 < rank && sum <= allowed;)
      sum += std::max(values[++gone], 0.0);
    *t = rank - gone;
    whole_ = false;
    Small u(m * *t);  // Lᴴ times the leading eigenvectors: LAPACK reads columns, as below
    for (long b = 0; b < *t; b++)
      for (long a = 0; a < rank; a++) {
        const S weight = conj(inner[(rank - 1 - b) * rank + a]);
        for (long i = 0; i < m; i++) u[i * *t + b] += conj(l[a * m + i]) * weight;
      }
    Numbers y = in_rows(u, m, *t), r(*t * kParts * padded(*t));
    orthonormalise(m, *t, &y, &r, nullptr);
    u_ = out_of_rows(y, m, *t);
    return true;
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
  const double* at_ = nullptr;  // A
  Numbers a_, b_, panel_ = Numbers(3 * kLanes * kDepth);
  Small u_;
};

}  // namespace tensorjax
