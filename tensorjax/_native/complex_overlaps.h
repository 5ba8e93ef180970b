// Inner products of two complex trains, the first one conjugated, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "complex_rows.h"
#include "exact_products.h"
#include "overlaps.h"

namespace tensorjax {

// By a sweep from the left. The matrix that is carried has rows as in complex_rows.h, so that products
// are those of real matrices: two of them, one for each part of the left factor. `R` is the precision of the cores.
template <class R>
class ComplexOverlap {
 public:
  using Cores = std::vector<const ComplexOf<R>*>;

  // x and y: sizes alone.
  ComplexOverlap(const Train& x, const Train& y, const Cores& xs, const Cores& ys)
      : x_(x), y_(y), xs_(xs), ys_(ys) {}

  // The inner product as m 2^e.
  Complex run(long* e) {
    Complex m;
    if (!sweep(false, &m, e)) sweep(true, &m, e);
    return m;
  }

 private:
  // False where a product of entries may have left the range, and the cores are to be scaled.
  bool sweep(bool scaled, Complex* m, long* e) {
    side_.assign(2 * kPad, 0.0);
    side_[0] = 1;
    *e = 0;
    int step = 0;
    for (size_t k = 0; k < xs_.size(); k++) {
      const long p = x_.r[k], q = y_.r[k], n = x_.n[k], s = x_.r[k + 1], t = y_.r[k + 1];
      int up = 0, down = 0;
      if (scaled) up = exponent_of(xs_[k], p * n * s), down = exponent_of(ys_[k], q * n * t);
      left_re_.resize(p * n * s), left_im_.resize(p * n * s);
      for (long i = 0; i < p * n * s; i++) {
        left_re_[i] = part(xs_[k][i].re, up);
        left_im_[i] = -part(xs_[k][i].im, up);
      }
      pass(k, down);
      double most = 0;
      for (const double x : next_) most = std::max(most, std::abs(x));
      int shift = 0;
      if (most > 0 && std::isfinite(most)) std::frexp(most, &shift);
      const double by = std::ldexp(1.0, -shift / 2), rest = std::ldexp(1.0, -(shift - shift / 2));
      for (double& x : next_) x = x * by * rest;
      *e += shift + up + down;
      step = std::max(step, std::abs(shift));
      side_.swap(next_);
    }
    *m = {side_[0], side_[kPad]};
    const double size = std::max(std::abs(m->re), std::abs(m->im));
    return scaled || (std::isfinite(size) && size != 0 && step < 400);
  }

  static double part(R x, int e) { return e ? std::ldexp(static_cast<double>(x), -e) : x; }

  // next (s, t) = Σ_i x_iᴴ side y_i, of the conjugated core in `left_`.
  void pass(size_t k, int down) {
    const long p = x_.r[k], q = y_.r[k], n = x_.n[k], s = x_.r[k + 1], t = y_.r[k + 1];
    const long ld = padded(t), wide = padded(q);
    right_.assign(q * 2 * ld, 0.0);
    next_.assign(s * 2 * ld, 0.0);
    image_.resize(p * 2 * ld);
    for (long i = 0; i < n; i++) {
      for (long b = 0; b < q; b++) {
        const ComplexOf<R>* from = ys_[k] + (b * n + i) * t;
        double* to = right_.data() + b * 2 * ld;
        for (long j = 0; j < t; j++) to[j] = part(from[j].re, down);
        for (long j = 0; j < t; j++) to[ld + j] = part(from[j].im, down);
      }
      const double *side = side_.data(), *re = left_re_.data() + i * s, *im = left_im_.data() + i * s;
      product(p, q, ld, side, side + wide, 2 * wide, 1, right_, &image_, false);
      product(s, p, ld, re, im, 1, n * s, image_, &next_, true);
    }
  }

  // C = A B or C += A B, B (depth × ld) of rows as in complex_rows.h, A of parts of any strides.
  void product(long rows, long depth, long ld, const double* re, const double* im, long row,
               long column, const Numbers& b, Numbers* c, bool add) {
    turned_.resize(depth * 2 * ld);  // i B
    for (long k = 0; k < depth * 2 * ld; k += 2 * ld)
      for (long j = 0; j < ld; j++) turned_[k + j] = -b[k + ld + j], turned_[k + ld + j] = b[k + j];
    times(rows, 2 * ld, depth, re, row, column, b.data(), 2 * ld, c->data(), 2 * ld, panel_.data(),
          false, add);
    times(rows, 2 * ld, depth, im, row, column, turned_.data(), 2 * ld, c->data(), 2 * ld,
          panel_.data(), false, true);
  }

  const Train &x_, &y_;
  const Cores &xs_, &ys_;
  Numbers side_, next_, right_, image_, turned_, left_re_, left_im_;
  Numbers panel_ = Numbers(3 * kLanes * kDepth);
};

}  // namespace tensorjax
