// Complex matrices of which every row holds its real parts, padded to whole vectors, and then its
// imaginary ones, so that their products are those of real matrices.
#pragma once

#include <cmath>
#include <vector>

#include "overlaps.h"
#include "products.h"

namespace tensorjax {

// A complex number as NumPy and LAPACK hold it. std::complex tests every product for NaN.
struct Complex {
  double re = 0, im = 0;
  Complex& operator+=(Complex x) {
    re += x.re, im += x.im;
    return *this;
  }
};
inline Complex operator*(Complex x, Complex y) {
  return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}
inline Complex conj(Complex x) { return {x.re, -x.im}; }
inline double conj(double x) { return x; }
inline double real(Complex x) { return x.re; }
inline double real(double x) { return x; }

// The rows of a real or complex matrix (rows × columns).
inline Numbers in_rows(const std::vector<double>& x, long rows, long columns) {
  const long ld = padded(columns);
  Numbers out(rows * ld, 0.0);
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < columns; j++) out[i * ld + j] = x[i * columns + j];
  return out;
}
inline Numbers in_rows(const std::vector<Complex>& x, long rows, long columns) {
  const long ld = padded(columns);
  Numbers out(rows * 2 * ld, 0.0);
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < columns; j++) {
      out[2 * i * ld + j] = x[i * columns + j].re;
      out[(2 * i + 1) * ld + j] = x[i * columns + j].im;
    }
  return out;
}

// i X, X complex of rows as above.
inline Numbers i_times(const Numbers& x, long rows, long columns) {
  const long ld = padded(columns);
  Numbers out(x.size());
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < ld; j++) {
      out[2 * i * ld + j] = -x[(2 * i + 1) * ld + j];
      out[(2 * i + 1) * ld + j] = x[2 * i * ld + j];
    }
  return out;
}

// B -= tau v (vᴴ B): v of complex numbers, B of rows as above, from row `first` on.
inline void reflect_complex(const std::vector<Complex>& v, double tau, long first, long rows,
                            long ld, Numbers* b, Numbers* dots) {
  std::fill(dots->begin(), dots->end(), 0.0);
  double *re = dots->data(), *im = re + ld;
  for (long i = first; i < rows; i++) {
    const double *row = &(*b)[2 * i * ld], x = v[i].re, y = v[i].im;
    for (long j = 0; j < ld; j++) {
      re[j] += x * row[j] + y * row[ld + j];
      im[j] += x * row[ld + j] - y * row[j];
    }
  }
  for (long i = first; i < rows; i++) {
    double* row = &(*b)[2 * i * ld];
    const double x = tau * v[i].re, y = tau * v[i].im;
    for (long j = 0; j < ld; j++) {
      row[j] -= x * re[j] - y * im[j];
      row[ld + j] -= x * im[j] + y * re[j];
    }
  }
}

// Y (rows × columns, rows ≥ columns) = Q R by Householder's reflections, complex of rows as above;
// Q takes the place of Y.
inline void complex_householder(long rows, long columns, Numbers* y, Numbers* r) {
  const long ld = padded(columns);
  std::vector<std::vector<Complex>> vs(columns);
  Numbers taus(columns, 0.0), dots(2 * ld);
  for (long j = 0; j < columns; j++) {
    std::vector<Complex>& v = vs[j];
    v.resize(rows);
    double below = 0;
    for (long i = j; i < rows; i++) v[i] = {(*y)[2 * i * ld + j], (*y)[(2 * i + 1) * ld + j]};
    for (long i = j + 1; i < rows; i++) below += v[i].re * v[i].re + v[i].im * v[i].im;
    if (!(below > 0)) continue;
    const double head = std::hypot(v[j].re, v[j].im), norm = std::sqrt(head * head + below);
    const Complex turn = head > 0 ? Complex{v[j].re / head, v[j].im / head} : Complex{1, 0};
    v[j] += Complex{norm, 0} * turn;
    taus[j] = 1 / (norm * (norm + head));
    reflect_complex(v, taus[j], j, rows, ld, y, &dots);
  }
  r->assign(columns * 2 * ld, 0.0);
  for (long i = 0; i < columns; i++)
    for (long j = i; j < columns; j++)
      for (long part = 0; part < 2; part++)
        (*r)[(2 * i + part) * ld + j] = (*y)[(2 * i + part) * ld + j];
  y->assign(rows * 2 * ld, 0.0);
  for (long i = 0; i < columns; i++) (*y)[2 * i * ld + i] = 1;
  for (long j = columns - 1; j >= 0; j--) reflect_complex(vs[j], taus[j], j, rows, ld, y, &dots);
}

}  // namespace tensorjax
