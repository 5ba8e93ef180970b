// Rounding to a share of the energy by Gram matrices from both ends, in double precision; see
// `gram_round` of tensorjax/tt/_sweeps.py.
//
//  1. grams  A_kᵀA_k and B_k B_kᵀ of all left sides A_k and right sides B_k, one end per thread
//  2. cuts   at every bond, V_k W_k in place of the identity: A_k V_k W_k B_k is the best low-rank
//            matrix near A_k B_k, for A_kᵀA_k = L Lᵀ, B_k B_kᵀ = R Rᵀ and Lᵀ R = U S Vᵀ
//  3. cores  W_{k−1} core_k V_k
//  4. check  the distance from the result, by inner products
//
// Every cut is an orthogonal projection of the left side of one and the same train, so the squares
// of what they discard add up to no less than the squared error. Nothing in a train of d cores waits
// for more than the 2 d steps of 1. Squares of singular values are lost below roundoff: where that
// is not small beside what may go, or the check fails, the train is given back.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lapack.h"
#include "passes.h"
#include "products.h"
#include "team.h"

namespace tensorjax {

// A core (r, n, s) whose rows are ld numbers apart; those after the s-th are zeros.
struct Slab {
  const double* at = nullptr;
  long r = 1, n = 1, s = 1, ld = kPad;
  long row() const { return n * ld; }
};

class GramRounding {
 public:
  // n: d modes; r: d + 1 ranks, 1 at both ends.
  GramRounding(const std::vector<long>& n, const std::vector<long>& r, const double* const* cores,
               const Lapack& lapack, int threads)
      : d_(static_cast<long>(n.size())), n_(n), r_(r), t_(r), cores_(cores), lapack_(lapack),
        own_(threads), left_(d_), right_(d_), w_(d_), v_(d_), out_(d_) {}

  // Whether a train was found that lacks at most `share` of the energy.
  bool run(Team& team, double share) {
    const auto input = [&](long k, Numbers& room) { return this->input(k, room); };
    team.run(2, [&](long side, int who) {
      if (side == 0) from_left(d_ - 1, input, input, true, own_[who], left_.data());
      else from_right(0, input, input, true, own_[who], right_.data());
    });
    // Roundoff of the check, as a share of the whole.
    double roundoff = 0;
    for (long k = 0; k + 1 < d_; k++) roundoff = std::max(roundoff, 8 * kEps * size(k));
    std::vector<char> fine(d_, 1);
    team.run(d_ - 1, [&](long k, int who) {
      fine[k] = cut(k, (share - 2 * roundoff) / (d_ - 1), own_[who]);
    });
    if (std::find(fine.begin(), fine.end(), 0) != fine.end()) return false;
    team.run(d_, [&](long k, int who) { trim(k, own_[who]); });
    return missing(team) <= share - roundoff;
  }

  const std::vector<long>& ranks() const { return t_; }

  // The cores of the result, one after another.
  void put(double* to) const {
    for (long k = 0; k < d_; k++) {
      const long t = t_[k + 1], ld = padded(t);
      for (long i = 0; i < t_[k] * n_[k]; i++, to += t)
        std::copy(out_[k].data() + i * ld, out_[k].data() + i * ld + t, to);
    }
  }

 private:
  using Numbers = std::vector<double>;

  struct Side {  // at a bond: a matrix with columns of whole vectors, divided by 4^e
    Numbers m;
    long e = 0;
  };

  struct Own {  // of a thread
    Numbers x, y, image, panel = Numbers(3 * kLanes * kDepth);
  };

  static double* room(Numbers& numbers, long size) {
    if (static_cast<long>(numbers.size()) < size) numbers.resize(size);
    return numbers.data();
  }

  // Core k of the train; copied where its rows are not whole vectors.
  Slab input(long k, Numbers& copy) const {
    Slab x{cores_[k], r_[k], n_[k], r_[k + 1], padded(r_[k + 1])};
    if (x.ld == x.s) return x;
    double* to = room(copy, x.r * x.row());
    for (long i = 0; i < x.r * x.n; i++) {
      std::copy(x.at + i * x.s, x.at + (i + 1) * x.s, to + i * x.ld);
      std::fill(to + i * x.ld + x.s, to + (i + 1) * x.ld, 0.0);
    }
    x.at = to;
    return x;
  }

  Slab output(long k) const { return {out_[k].data(), t_[k], n_[k], t_[k + 1], padded(t_[k + 1])}; }

  // Z' (x.s × y.s) = Σ_i x_iᵀ Z y_i; with `same`, x is y and only what is above the diagonal is
  // computed, and mirrored.
  static void step_right(const Slab& x, const Slab& y, const Numbers& z, Numbers& next, bool same,
                         Own& own) {
    const long ldz = padded(y.r);
    next.assign(x.s * y.ld, 0.0);
    double *image = room(own.image, y.r * x.ld), *panel = own.panel.data();
    const Panels panels(y.ld);
    for (long i = 0; i < x.n; i++) {
      times(y.r, x.ld, x.r, z.data(), 1, ldz, x.at + i * x.ld, x.row(), image, x.ld, panel);
      for (long p = 0; p < panels.count; p++) {
        const long j = panels.start(p), width = panels.start(p + 1) - j;
        const long rows = same ? std::min(x.s, j + width) : x.s;
        times(rows, width, y.r, image, 1, x.ld, y.at + i * y.ld + j, y.row(), next.data() + j, y.ld,
              panel, false, i > 0);
      }
    }
    if (same)
      for (long i = 0; i < x.s; i++)
        for (long j = 0; j < i; j++) next[i * x.ld + j] = next[j * x.ld + i];
  }

  // Z' (x.r × y.r) = Σ_i x_i Z y_iᵀ; `same` as above.
  static void step_left(const Slab& x, const Slab& y, const Numbers& z, Numbers& next, bool same,
                        Own& own) {
    constexpr long kBlock = 2 * kSide;
    const long ld = padded(y.r);
    next.assign(x.r * ld, 0.0);
    double* image = room(own.image, kBlock * y.row());
    for (long from = 0; from < x.r; from += kBlock) {
      const long some = std::min(kBlock, x.r - from);
      times(some * x.n, y.ld, x.s, x.at + from * x.row(), x.ld, 1, z.data(), y.ld, image, y.ld,
            own.panel.data());
      for (long j = 0; j < (same ? from + some : y.r); j += kSide)
        for (long i = 0; i < some; i += kSide)
          inner(std::min(kSide, some - i), std::min(kSide, y.r - j), y.row(), image + i * y.row(),
                y.row(), y.at + j * y.row(), y.row(), next.data() + (from + i) * ld + j, ld);
    }
    if (same)
      for (long i = 0; i < x.r; i++)
        for (long j = i + 1; j < x.r; j++) next[i * ld + j] = next[j * ld + i];
  }

  // Divides by a power of four, so that the largest entry is about one.
  static void normalise(Side& side) {
    double most = 0;
    for (double x : side.m) most = std::max(most, std::abs(x));
    int e = 0;
    if (most > 0 && std::isfinite(most)) std::frexp(most, &e);
    e /= 2;
    const double by = std::ldexp(1.0, -2 * e);
    for (double& x : side.m) x *= by;
    side.e += e;
  }

  static Side one() {
    Side side{Numbers(kPad, 0.0), 0};
    side.m[0] = 1;
    return side;
  }

  // XᵀY for the left sides X and Y of two trains at bond `last` − 1, and at all before if asked.
  template <class X, class Y>
  Side from_left(long last, const X& x, const Y& y, bool same, Own& own, Side* all = nullptr) const {
    Side side = one();
    for (long k = 0; k < last; k++) {
      Side next{{}, side.e};
      const Slab a = x(k, own.x), b = same ? a : y(k, own.y);
      step_right(a, b, side.m, next.m, same, own);
      normalise(next);
      side = std::move(next);
      if (all) all[k] = side;
    }
    return side;
  }

  // X Yᵀ for the right sides at bond `first`, and at all after if asked.
  template <class X, class Y>
  Side from_right(long first, const X& x, const Y& y, bool same, Own& own,
                  Side* all = nullptr) const {
    Side side = one();
    for (long k = d_ - 1; k > first; k--) {
      Side next{{}, side.e};
      const Slab a = x(k, own.x), b = same ? a : y(k, own.y);
      step_left(a, b, side.m, next.m, same, own);
      normalise(next);
      side = std::move(next);
      if (all) all[k - 1] = side;
    }
    return side;
  }

  static double dot(const Numbers& a, const Numbers& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
    return sum;
  }

  // ‖GL‖ ‖GR‖ beside the energy that both make up: 1 at least, more where much cancels.
  double size(long k) const {
    const Numbers &gl = left_[k].m, &gr = right_[k].m;
    const double size = std::sqrt(dot(gl, gl) * dot(gr, gr)) / dot(gl, gr);
    return size >= 0 ? size : std::numeric_limits<double>::infinity();
  }

  // About ‖G‖_2, by three power steps: enough to bound roundoff.
  static double spectral(const Numbers& g, long r, long ld) {
    Numbers v(r), w(r);
    for (long i = 0; i < r; i++) v[i] = 1 + 0.5 * i / r;
    double estimate = 0;
    for (int step = 0; step < 3; step++) {
      double before = 0, after = 0;
      for (long i = 0; i < r; i++) {
        w[i] = 0;
        for (long j = 0; j < r; j++) w[i] += g[i * ld + j] * v[j];
        before += v[i] * v[i];
        after += w[i] * w[i];
      }
      estimate = std::sqrt(after / before);
      if (!(after > 0)) break;
      for (long i = 0; i < r; i++) v[i] = w[i] / std::sqrt(after);
    }
    return estimate;
  }

  // Chooses the rank, V and W at bond k, so that `share` of the energy may go; false where roundoff
  // is not small beside that.
  bool cut(long k, double share, Own& own) {
    const long r = r_[k + 1], ld = padded(r);
    const Numbers &gl = left_[k].m, &gr = right_[k].m;
    const double total = dot(gl, gr);
    const double noise = kEps * spectral(gl, r, ld) * spectral(gr, r, ld);
    if (!(4 * noise <= share * total)) return false;
    const double tail = share * total - 2 * noise;
    Numbers l(r * ld), right(r * ld);
    long m = factor(r, ld, gl, l), o = factor(r, ld, gr, right);
    const bool swapped = m > o;  // the smaller side's squares are diagonalised
    if (swapped) {
      std::swap(m, o);
      std::swap(l, right);
    }
    const long wide = padded(o);
    Numbers seen(m * wide, 0.0), vectors(m * m), values(m), x(m * wide);
    for (long i = 0; i < m; i += kSide)
      for (long j = 0; j < o; j += kSide)
        inner(std::min(kSide, m - i), std::min(kSide, o - j), ld, l.data() + i * ld, ld,
              right.data() + j * ld, ld, seen.data() + i * wide + j, wide);
    for (long i = 0; i < m; i += kSide)
      for (long j = 0; j <= i; j += kSide)
        inner(std::min(kSide, m - i), std::min(kSide, m - j), wide, seen.data() + i * wide, wide,
              seen.data() + j * wide, wide, vectors.data() + i * m + j, m);
    if (!eigen(m, vectors, values)) return false;
    long less = 0;
    for (double gone = std::max(values[0], 0.0); less + 1 < m && gone <= tail;)
      gone += std::max(values[++less], 0.0);
    const long t = m - less;
    double* panel = own.panel.data();
    // Rows: leading vectors first.
    const double* leading = vectors.data() + (m - 1) * m;
    Numbers near(t * ld), far(t * ld);
    times(t, ld, m, leading, -m, 1, l.data(), ld, near.data(), ld, panel);
    times(t, wide, m, leading, -m, 1, seen.data(), wide, x.data(), wide, panel);
    times(t, ld, o, x.data(), wide, 1, right.data(), ld, far.data(), ld, panel);
    for (long i = 0; i < t; i++) {
      const double square = values[m - 1 - i];
      const double by = 1 / (swapped ? std::sqrt(square) : square);
      for (long j = 0; j < ld; j++) {
        far[i * ld + j] *= by;
        if (swapped) near[i * ld + j] *= by;
      }
    }
    if (swapped) std::swap(near, far);
    t_[k + 1] = t;
    w_[k] = std::move(near);
    v_[k].assign(r * padded(t), 0.0);
    for (long i = 0; i < t; i++)
      for (long j = 0; j < r; j++) v_[k][j * padded(t) + i] = far[i * ld + j];
    return true;
  }

  // Rows of Lᵀ with L Lᵀ = G but for roundoff.
  static long factor(long r, long ld, const Numbers& g, Numbers& lower) {
    double trace = 0;
    for (long i = 0; i < r; i++) trace += g[i * ld + i];
    return pivoted_cholesky(r, ld, g.data(), 2 * kEps * trace, lower.data());
  }

  // Eigenvectors, one after another, in place of a matrix of which the lower triangle counts.
  bool eigen(long m, Numbers& a, Numbers& values) const {
    char job = 'V', half = 'U';  // LAPACK sees the transpose
    int n = m, info = 0, size = 1 + 6 * m + 2 * m * m, few = 3 + 5 * m;
    Numbers work(size);
    std::vector<int> integers(few);
    lapack_.syevd(&job, &half, &n, a.data(), &n, values.data(), work.data(), &size, integers.data(),
                  &few, &info);
    return info == 0;
  }

  // W_{k−1} core_k V_k.
  void trim(long k, Own& own) {
    Slab x = input(k, own.x);
    const long t = t_[k], next = padded(t_[k + 1]);
    if (k > 0) {
      double* image = room(own.image, t * x.row());
      times(t, x.row(), x.r, w_[k - 1].data(), padded(x.r), 1, x.at, x.row(), image, x.row(),
            own.panel.data());
      x.at = image;
    }
    out_[k].resize(t * x.n * next);
    if (k + 1 == d_) std::copy(x.at, x.at + t * x.row(), out_[k].data());
    else times(t * x.n, next, x.s, x.at, x.ld, 1, v_[k].data(), next, out_[k].data(), next,
               own.panel.data());
  }

  // ‖x − y‖² / ‖x‖² for the train x and the result y.
  double missing(Team& team) {
    const auto input = [&](long k, Numbers& room) { return this->input(k, room); };
    const auto output = [&](long k, Numbers&) { return this->output(k); };
    const long at = (d_ - 1) / 2;
    Side mixed[2], own[2];
    team.run(4, [&](long task, int who) {
      const bool left = task % 2;
      if (task < 2)
        mixed[task] = left ? from_left(at + 1, input, output, false, own_[who])
                           : from_right(at, input, output, false, own_[who]);
      else
        own[task - 2] = left ? from_left(at + 1, output, output, true, own_[who])
                             : from_right(at, output, output, true, own_[who]);
    });
    const long e = left_[at].e + right_[at].e;
    const auto relative = [&](const Side& a, const Side& b) {
      return std::ldexp(dot(a.m, b.m), static_cast<int>(2 * (a.e + b.e - e)));
    };
    const double total = dot(left_[at].m, right_[at].m);
    return (total - 2 * relative(mixed[0], mixed[1]) + relative(own[0], own[1])) / total;
  }

  const long d_;
  const std::vector<long>&n_, &r_;
  std::vector<long> t_;
  const double* const* cores_;
  const Lapack& lapack_;
  std::vector<Own> own_;
  std::vector<Side> left_, right_;
  std::vector<Numbers> w_, v_, out_;
};

}  // namespace tensorjax
