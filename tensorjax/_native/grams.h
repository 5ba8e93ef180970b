// Rounding to a share of the energy by Gram matrices, in double precision; see `gram_round` of
// tensorjax/_cores/gram_rounding.py.
//
//  1. from the right  Gram matrices G_k = B_k B_kᵀ = R Rᵀ of all that lies right of each bond
//  2. from the left   A_kᵀA_k = L Lᵀ of what lies left, cut already; with Lᵀ R = U S Vᵀ,
//                     Q = A_k R V S⁻¹ is orthonormal and Uᵀ Lᵀ goes into the next core
//  3. check           the distance from the result, by inner products
//
// Squares of singular values are lost below roundoff: where that is not small beside what may go,
// or the check fails, the train is given back.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lapack.h"
#include "overlaps.h"
#include "passes.h"
#include "products.h"
#include "team.h"

namespace tensorjax {

class GramRounding {
 public:
  // n: d modes; r: d + 1 ranks, 1 at both ends.
  GramRounding(const std::vector<long>& n, const std::vector<long>& r, const double* const* cores,
               const Lapack& lapack, int threads)
      : d_(static_cast<long>(n.size())), n_(n), r_(r), t_(r), cores_(cores), lapack_(lapack),
        own_(threads), right_(d_), factors_(d_), few_(d_), out_(d_) {}

  // Whether a train was found that lacks at most `share` of the energy.
  bool run(Team& team, double share) {
    right_sides(team);
    team.run(d_ - 1, [&](long k, int) {
      factors_[k].resize(r_[k + 1] * padded(r_[k + 1]));
      few_[k] = factor(r_[k + 1], right_[k].m, factors_[k]);
    });
    double roundoff = 0;  // of the check, as a share of the whole
    Side left;
    for (long k = 0; k + 1 < d_; k++) {
      const Slab part = absorbed(team, k);
      left.m = squares(team, part, own_);
      normalise(left);  // so that the norm stays in the cores that have it
      if (k == 0) {
        total_ = dot(left.m, right_[0].m);
        exponent_ = left.e + right_[0].e;
      }
      roundoff = std::max(roundoff, 8 * kEps * size(left.m, right_[k].m));
      if (!cut(k, left, share - 2 * roundoff, own_[0])) return false;
      out_[k].resize(part.r * part.n * padded(t_[k + 1]));
      const long pieces = (part.r + 7) / 8, next = padded(t_[k + 1]);
      team.run(pieces, [&](long piece, int who) {
        const long from = 8 * piece, rows = std::min(8L, part.r - from) * part.n;
        times(rows, next, part.s, part.at + from * part.row(), part.ld, 1, v_.data(), next,
              out_[k].data() + from * part.n * next, next, own_[who].panel.data());
      });
    }
    const Slab last = absorbed(team, d_ - 1);
    out_[d_ - 1].assign(last.at, last.at + last.r * last.row());
    return missing(team) <= share - roundoff;
  }

  const std::vector<long>& ranks() const { return t_; }

  // The cores of the result, one after another, each from a whole cache line on.
  void put(double* to) const {
    for (long k = 0; k < d_; k++) {
      const long t = t_[k + 1], ld = padded(t), rows = t_[k] * n_[k];
      for (long i = 0; i < rows; i++)
        std::copy(out_[k].data() + i * ld, out_[k].data() + i * ld + t, to + i * t);
      to += whole_lines<double>(rows * t);
    }
  }

 private:
  // Core k of the train; copied where its rows are not whole vectors.
  Slab input(long k, Numbers& copy) const {
    Slab x{cores_[k], r_[k], n_[k], r_[k + 1], padded(r_[k + 1])};
    if (x.ld == x.s) return x;
    double* to = room(copy, x.r * x.row());
    pad(x, 0, x.r * x.n, to);
    x.at = to;
    return x;
  }

  Slab output(long k) const { return {out_[k].data(), t_[k], n_[k], t_[k + 1], padded(t_[k + 1])}; }

  // Core k, copied by all threads where its rows are not whole vectors.
  Slab core(Team& team, long k) {
    Slab x{cores_[k], r_[k], n_[k], r_[k + 1], padded(r_[k + 1])};
    if (x.ld == x.s) return x;
    double* to = room(core_, x.r * x.row());
    const long pieces = (x.r + kBlock - 1) / kBlock;
    team.run(pieces, [&](long piece, int) {
      pad(x, kBlock * piece * x.n, std::min(x.r, kBlock * (piece + 1)) * x.n, to);
    });
    x.at = to;
    return x;
  }

  // 1. B_k B_kᵀ.
  void right_sides(Team& team) {
    Side side = no_cores();
    for (long k = d_ - 1; k > 0; k--) {
      const Slab x = core(team, k);
      Side next{Numbers(x.r * padded(x.r), 0.0), side.e};
      team.run((x.r + kBlock - 1) / kBlock, [&](long piece, int who) {
        step_left(x, x, side.m, next.m, true, piece * kBlock, own_[who]);
      });
      mirror_up(next.m, x.r);
      normalise(next);
      side = right_[k - 1] = std::move(next);
    }
  }

  // 2. W_{k−1} core_k.
  Slab absorbed(Team& team, long k) {
    Slab x = core(team, k);
    if (k == 0) return x;
    double* to = room(part_, t_[k] * x.row());
    team.run(x.n, [&](long i, int who) {
      times(t_[k], x.ld, x.r, w_.data(), padded(x.r), 1, x.at + i * x.ld, x.row(), to + i * x.ld,
            x.row(), own_[who].panel.data());
    });
    x.at = to;
    x.r = t_[k];
    return x;
  }

  // PᵀP for P (r n × s).
  static Numbers squares(Team& team, const Slab& p, std::vector<Workspace>& own) {
    Numbers g(p.s * p.ld, 0.0);
    const Panels panels(p.ld);
    team.run(panels.count, [&](long x, int who) {
      const long j = panels.start(x), width = panels.start(x + 1) - j;
      times(std::min(p.s, j + width), width, p.r * p.n, p.at, 1, p.ld, p.at + j, p.ld, g.data() + j,
            p.ld, own[who].panel.data());
    });
    for (long i = 0; i < p.s; i++)
      for (long j = 0; j < i; j++) g[i * p.ld + j] = g[j * p.ld + i];
    return g;
  }

  // ‖GL‖ ‖GR‖ beside the energy that both make up: 1 at least, more where much cancels.
  static double size(const Numbers& gl, const Numbers& gr) {
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

  // Chooses the rank, V and W at bond k, so that `share` of the energy may go at all bonds together;
  // false where roundoff is not small beside that.
  bool cut(long k, const Side& left, double share, Workspace& own) {
    const long r = r_[k + 1], ld = padded(r);
    const Numbers &gl = left.m, &gr = right_[k].m;
    const double whole =
        std::ldexp(total_, static_cast<int>(2 * (exponent_ - left.e - right_[k].e)));
    const double allowed = share / (d_ - 1) * whole;
    const double noise = kEps * spectral(gl, r, ld) * spectral(gr, r, ld);
    if (!(4 * noise <= allowed)) return false;
    const double tail = allowed - 2 * noise;
    Numbers l(r * ld), right = factors_[k];
    long m = factor(r, gl, l), o = few_[k];
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
    w_ = std::move(near);
    v_.assign(r * padded(t), 0.0);
    for (long i = 0; i < t; i++)
      for (long j = 0; j < r; j++) v_[j * padded(t) + i] = far[i * ld + j];
    return true;
  }

  // Rows of Lᵀ with L Lᵀ = G but for roundoff.
  static long factor(long r, const Numbers& g, Numbers& lower) {
    const long ld = padded(r);
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
                           : from_right(at + 1, d_, input, output, false, own_[who]);
      else
        own[task - 2] = left ? from_left(at + 1, output, output, true, own_[who])
                             : from_right(at + 1, d_, output, output, true, own_[who]);
    });
    const auto relative = [&](const Side& a, const Side& b) {
      return std::ldexp(dot(a.m, b.m), static_cast<int>(2 * (a.e + b.e - exponent_)));
    };
    const double lacking = total_ - 2 * relative(mixed[0], mixed[1]) + relative(own[0], own[1]);
    return lacking / total_;
  }

  const long d_;
  const std::vector<long>&n_, &r_;
  std::vector<long> t_;
  const double* const* cores_;
  const Lapack& lapack_;
  std::vector<Workspace> own_;
  std::vector<Side> right_;
  std::vector<Numbers> factors_;  // of the right sides, R transposed
  std::vector<long> few_;         // their ranks
  std::vector<Numbers> out_;
  Numbers v_, w_, core_, part_;
  double total_ = 0;  // of the energy, divided by 4^exponent_
  long exponent_ = 0;
};

}  // namespace tensorjax
