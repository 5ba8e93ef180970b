// QR factorisation by Householder's reflections, of matrices whose rows are padded to whole vectors.
#pragma once

#include <algorithm>
#include <cmath>

#include "products.h"

namespace tensorjax {

// B -= tau x (xᵀ B), rows from `first` on, and the vectors with columns from … to − 1.
inline void reflect(const double* x, double tau, long first, long rows, double* b, long ldb,
                    long from, long to) {
  for (long l = from / kLanes * kLanes; l < to; l += kLanes) {
    Vector dots[4] = {};
    long i = first;
    for (; i + 4 <= rows; i += 4)
      for (int z = 0; z < 4; z++) dots[z] += x[i + z] * load(b + (i + z) * ldb + l);
    for (; i < rows; i++) dots[0] += x[i] * load(b + i * ldb + l);
    const Vector by = tau * ((dots[0] + dots[1]) + (dots[2] + dots[3]));
    for (i = first; i < rows; i++) {
      double* at = b + i * ldb + l;
      store(at, load(at) - x[i] * by);
    }
  }
}

// A (rows × columns) = Q R: Q (rows × c), R (c × columns), c ≤ rows, columns. A is overwritten.
// `scratch` holds (rows + 1) c numbers: the vectors, each contiguous, and their factors.
inline void householder(long rows, long c, long columns, double* a, long lda, double* q, long ldq,
                        double* r, long ldr, double* scratch) {
  double *v = scratch, *tau = scratch + rows * c;
  const long across = padded(columns), wide = padded(c);
  for (long j = 0; j < c; j++) {
    double *x = v + j * rows, below = 0;
    for (long i = j; i < rows; i++) x[i] = a[i * lda + j];
    for (long i = j + 1; i < rows; i++) below += x[i] * x[i];
    tau[j] = 0;
    if (!(below > 0)) continue;
    const double head = x[j], beta = -std::copysign(std::sqrt(head * head + below), head);
    tau[j] = (beta - head) / beta;
    for (long i = j + 1; i < rows; i++) x[i] *= 1 / (head - beta);
    x[j] = 1;
    reflect(x, tau[j], j, rows, a, lda, j, across);
  }
  for (long i = 0; i < c; i++)
    for (long j = 0; j < across; j++) r[i * ldr + j] = j < i ? 0 : a[i * lda + j];
  for (long i = 0; i < rows; i++) std::fill(q + i * ldq, q + i * ldq + wide, 0.0);
  for (long i = 0; i < c; i++) q[i * ldq + i] = 1;
  for (long j = c - 1; j >= 0; j--) reflect(v + j * rows, tau[j], j, rows, q, ldq, j, wide);
}

}  // namespace tensorjax
