// Orthonormal columns and products of real or complex matrices in double precision, whose rows hold
// their real parts, padded to whole vectors, and then their imaginary ones; see complex_rows.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "complex_rows.h"
#include "householder.h"
#include "overlaps.h"
#include "products.h"

namespace tensorjax {

// kParts: 1 of real matrices, 2 of complex ones; S: their numbers.
template <long kParts, class S>
class OrthonormalColumns {
 protected:
  using Small = std::vector<S>;

  // C (rows × columns) = X Yᵀ of real matrices of rows of `depth`.
  static void products(long rows, long columns, long depth, const double* x, const double* y,
                       double* c) {
    for (long i = 0; i < rows; i += kSide)
      for (long j = 0; j < columns; j += kSide)
        inner(std::min(kSide, rows - i), std::min(kSide, columns - j), depth, x + i * depth, depth,
              y + j * depth, depth, c + i * columns + j, columns);
  }

  // C (rows × columns) = X Y, X (rows × t): all with rows as above.
  void multiplied(long rows, long t, long columns, const Numbers& x, const Numbers& y, Numbers* c) {
    const long ld = kParts * padded(t), wide = kParts * padded(columns);
    if (kParts == 1) {
      times(rows, wide, t, x.data(), ld, 1, y.data(), wide, c->data(), wide, panel_.data());
      return;
    }
    const Numbers turned = i_times(y, t, columns);
    times(rows, wide, t, x.data(), ld, 1, y.data(), wide, c->data(), wide, panel_.data());
    times(rows, wide, t, x.data() + padded(t), ld, 1, turned.data(), wide, c->data(), wide,
          panel_.data(), false, true);
  }

  // Y (rows × t) becomes Y B, B (t × t) upper triangular, some rows at a time: fresh memory for all of
  // them would take longer than the product.
  void multiplied_in_place(long rows, long t, const Numbers& b, Numbers* y) {
    const long wide = kParts * padded(t), step = std::min(rows, kRowsAtOnce);
    const Numbers turned = kParts == 2 ? i_times(b, t, t) : Numbers();
    Numbers some(step * wide);
    for (long i = 0; i < rows; i += step) {
      const long count = std::min(step, rows - i);
      double* const from = y->data() + i * wide;
      times(count, wide, t, from, wide, 1, b.data(), wide, some.data(), wide, panel_.data(),
            kParts == 1);
      if (kParts == 2)
        times(count, wide, t, from + padded(t), wide, 1, turned.data(), wide, some.data(), wide,
              panel_.data(), false, true);
      std::copy(some.begin(), some.begin() + count * wide, from);
    }
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
  // but for roundoff of the largest beside the smallest. False where that has less than `flat` of its
  // energy.
  static bool normalise(long rows, long t, double flat, Numbers* y, Numbers* r) {
    const long ld = padded(t), wide = kParts * ld;
    Numbers squares(ld, 0.0), inverse(ld, 0.0);
    for (long i = 0; i < rows; i++)
      for (long part = 0; part < kParts; part++) {
        const double* row = y->data() + i * wide + part * ld;
        for (long j = 0; j < t; j++) squares[j] += row[j] * row[j];
      }
    const auto [least, most] = std::minmax_element(squares.begin(), squares.begin() + t);
    if (!(*least > flat * *most)) return false;
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
    Numbers h(side * ld, 0.0), inverse(side * ld), none(side, 0.0), pivots(side);
    Numbers sizes(t, 1.0), factor(t * wide), back(t * wide);
    Small g(t * t);
    for (int pass = 0; pass < 2; pass++) {
      if (pass == 0 && known)
        std::copy(known, known + t * t, g.begin());
      else
        columns_gram(rows, t, *y, &g);
      if (pass == 0)
        for (long j = 0; j < t; j++) {
          sizes[j] = std::sqrt(real(g[j * t + j]));
          if (!(sizes[j] > 0)) return reflected(rows, t, y, r, false);
        }
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
      multiplied_in_place(rows, t, back, y);
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
    multiplied(t, t, t, factor, *r, &out);
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

  Numbers panel_ = Numbers(3 * kLanes * kDepth);

 private:
  static constexpr long kRowsAtOnce = 256;
  // Squared sines of the angle to the columns before: above kUpright one pass is exact enough, above
  // kSafe two.
  static constexpr double kUpright = 0.5, kSafe = 1.5e-6;
};

}  // namespace tensorjax
