// What two tensor trains have in common: XᵀY of their left sides, X Yᵀ of their right sides, and
// inner products, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "products.h"
#include "team.h"

namespace tensorjax {

using Numbers = std::vector<double>;

// A core (r, n, s) whose rows are ld numbers apart; those after the s-th are zeros.
struct Slab {
  const double* at = nullptr;
  long r = 1, n = 1, s = 1, ld = kPad;
  long row() const { return n * ld; }
};

struct Side {  // at a bond: a matrix with columns of whole vectors, divided by 4^e
  Numbers m;
  long e = 0, step = 0;  // step: the largest change of e, up or down, at one core
};

struct Workspace {  // of a thread
  Numbers x, y, image, panel = Numbers(3 * kLanes * kDepth);
};

inline double* room(Numbers& numbers, long size) {
  if (static_cast<long>(numbers.size()) < size) numbers.resize(size);
  return numbers.data();
}

inline double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
  return sum;
}

inline Side no_cores() {
  Side side{Numbers(kPad, 0.0), 0};
  side.m[0] = 1;
  return side;
}

inline double largest(const Numbers& numbers) {
  double most = 0;
  for (double x : numbers) most = std::max(most, std::abs(x));
  return most;
}

// Divides by a power of four, so that the largest entry is about one.
inline void normalise(Side& side) {
  const double most = largest(side.m);
  int e = 0;
  if (most > 0 && std::isfinite(most)) std::frexp(most, &e);
  e /= 2;
  const double by = std::ldexp(1.0, -2 * e);
  for (double& x : side.m) x *= by;
  side.e += e;
  side.step = std::max(side.step, std::labs(e));
}

// Rows `from` … `end` − 1 of a core without padding, to rows of whole vectors, times `by`.
inline void pad(const Slab& x, long from, long end, double* to, double by = 1) {
  for (long i = from; i < end; i++) {
    for (long j = 0; j < x.s; j++) to[i * x.ld + j] = by * x.at[i * x.s + j];
    std::fill(to + i * x.ld + x.s, to + (i + 1) * x.ld, 0.0);
  }
}

// Z' (x.s × y.s) = Σ_i x_iᵀ Z y_i; with `same`, x is y and only what is above the diagonal is
// computed, and mirrored.
inline void step_right(const Slab& x, const Slab& y, const Numbers& z, Numbers& next, bool same,
                       Workspace& own) {
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

constexpr long kBlock = 2 * kSide;  // rows of a step to the left that go together

// Rows of Z' (x.r × y.r) = Σ_i x_i Z y_iᵀ; with `same`, those on and below the diagonal.
inline void step_left(const Slab& x, const Slab& y, const Numbers& z, Numbers& next, bool same,
                      long from, Workspace& own) {
  const long ld = padded(y.r), some = std::min(kBlock, x.r - from);
  double* image = room(own.image, kBlock * y.row());
  times(some * x.n, y.ld, x.s, x.at + from * x.row(), x.ld, 1, z.data(), y.ld, image, y.ld,
        own.panel.data());
  for (long j = 0; j < (same ? from + some : y.r); j += kSide)
    for (long i = 0; i < some; i += kSide)
      inner(std::min(kSide, some - i), std::min(kSide, y.r - j), y.row(), image + i * y.row(),
            y.row(), y.at + j * y.row(), y.row(), next.data() + (from + i) * ld + j, ld);
}

inline void mirror_up(Numbers& g, long n) {
  const long ld = padded(n);
  for (long i = 0; i < n; i++)
    for (long j = i + 1; j < n; j++) g[i * ld + j] = g[j * ld + i];
}

// XᵀY for the left sides X and Y of two trains, up to core `end` − 1. x and y are called with the
// number of a core and room for a copy of it.
template <class X, class Y>
Side from_left(long end, const X& x, const Y& y, bool same, Workspace& own) {
  Side side = no_cores();
  for (long k = 0; k < end; k++) {
    Side next{{}, side.e, side.step};
    const Slab a = x(k, own.x), b = same ? a : y(k, own.y);
    step_right(a, b, side.m, next.m, same, own);
    normalise(next);
    side = std::move(next);
  }
  return side;
}

// X Yᵀ for the right sides, from core `begin` to core d − 1.
template <class X, class Y>
Side from_right(long begin, long d, const X& x, const Y& y, bool same, Workspace& own) {
  Side side = no_cores();
  for (long k = d - 1; k >= begin; k--) {
    const Slab a = x(k, own.x), b = same ? a : y(k, own.y);
    Side next{Numbers(a.r * padded(b.r), 0.0), side.e, side.step};
    for (long from = 0; from < a.r; from += kBlock)
      step_left(a, b, side.m, next.m, same, from, own);
    if (same) mirror_up(next.m, a.r);
    normalise(next);
    side = std::move(next);
  }
  return side;
}

struct Train {  // cores (r_k, n_k, r_{k+1}) without padding
  std::vector<long> n, r;
  std::vector<const double*> cores;
};

// An inner product as m 4^e: from both ends at once, to the middle.
class Overlap {
 public:
  // y may be x, and then half of the work is saved.
  Overlap(const Train& x, const Train& y) : x_(x), y_(y), same_(&x == &y) {}

  void run(Team& team, double* m, long* e) {
    if (meet(team, m, e)) return;
    scaled_ = true;
    meet(team, m, e);
  }

 private:
  // False where a product of entries may have left the range, and the cores are to be scaled.
  bool meet(Team& team, double* m, long* e) {
    const long d = static_cast<long>(x_.n.size()), middle = (d + 1) / 2;
    const auto x = [&](long k, Numbers& copy) { return core(x_, k, copy); };
    const auto y = [&](long k, Numbers& copy) { return core(y_, k, copy); };
    std::vector<Workspace> own(team.size());
    Side half[2];
    team.run(2, [&](long i, int who) {
      half[i] = i ? from_right(middle, d, x, y, same_, own[who])
                  : from_left(middle, x, y, same_, own[who]);
    });
    *m = dot(half[0].m, half[1].m);
    *e = half[0].e + half[1].e;
    if (scaled_)
      for (long k = 0; k < d; k++) *e += (exponent(x_, k) + exponent(y_, k)) / 2;
    return scaled_ || (std::isfinite(*m) && *m != 0 && std::max(half[0].step, half[1].step) < 200);
  }

  // Even, so that two make a power of four.
  static long exponent(const Train& t, long k) {
    double most = 0;
    for (long i = 0; i < t.r[k] * t.n[k] * t.r[k + 1]; i++)
      most = std::max(most, std::abs(t.cores[k][i]));
    int e = 0;
    if (most > 0 && std::isfinite(most)) std::frexp(most, &e);
    return e / 2 * 2;
  }

  Slab core(const Train& t, long k, Numbers& copy) const {
    Slab x{t.cores[k], t.r[k], t.n[k], t.r[k + 1], padded(t.r[k + 1])};
    if (x.ld == x.s && !scaled_) return x;
    double* to = room(copy, x.r * x.row());
    const double by = scaled_ ? std::ldexp(1.0, static_cast<int>(-exponent(t, k))) : 1;
    pad(x, 0, x.r * x.n, to, by);
    x.at = to;
    return x;
  }

  const Train &x_, &y_;
  const bool same_;
  bool scaled_ = false;
};

}  // namespace tensorjax
