// Entries of a tensor train on the host, one after another, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace tensorjax {

// Vectors are kept between powers of two of these exponents; out of products of other sizes the
// vector is scaled first: near the ends of the range they lose digits, or all of them.
constexpr int kNear = 200, kFar = 500, kSmall = -64, kLarge = 400;

// kParts: 1 of real trains, 2 of complex ones. T: of a part.
template <long kParts, class T>
class Entries {
 public:
  // Cores (r_k, n_k, r_{k+1}), row-major; the outer ranks are one.
  Entries(const std::vector<long>& modes, const std::vector<long>& ranks, const T* const* cores)
      : modes_(modes), ranks_(ranks), cores_(cores) {
    const long widest = *std::max_element(ranks.begin(), ranks.end());
    v_.resize(kParts * widest), w_.resize(kParts * widest), turned_.resize(kParts * widest);
  }

  // The entry at a multi-index, to `out`; false where an index is out of range.
  bool at(const int64_t* ids, T* out) {
    long power = 0;
    std::fill(v_.begin(), v_.end(), 0.0);
    v_[0] = 1;
    for (size_t k = 0; k < modes_.size(); k++) {
      const int64_t n = modes_[k], i = ids[k] < 0 ? ids[k] + n : ids[k];
      if (i < 0 || i >= n) return false;
      double top = times(k, i);
      if (!(top > std::ldexp(1.0, -kFar) && top < std::ldexp(1.0, kFar))) {
        const double before = largest(v_, kParts * ranks_[k]);
        const int to = top <= std::ldexp(1.0, -kFar) ? kLarge : kSmall;
        if (before > 0 && std::isfinite(before)) {
          power += scale(&v_, kParts * ranks_[k], to - std::ilogb(before));
          top = times(k, i);
        }
      }
      std::swap(v_, w_);
      const bool near = top > std::ldexp(1.0, -kNear) && top < std::ldexp(1.0, kNear);
      if (!near && top > 0 && std::isfinite(top))
        power += scale(&v_, kParts * ranks_[k + 1], -std::ilogb(top));
    }
    const int by = static_cast<int>(std::max(std::min(power, 1L << 20), -(1L << 20)));
    for (long part = 0; part < kParts; part++)
      out[part] = static_cast<T>(std::ldexp(v_[part], by));
    return true;
  }

 private:
  // Times 2^by; returns the exponent of what is left out.
  static long scale(std::vector<double>* x, long count, int by) {
    for (long j = 0; j < count; j++) (*x)[j] = std::ldexp((*x)[j], by);
    return -by;
  }

  static double largest(const std::vector<double>& x, long count) {
    double top = 0;
    for (long j = 0; j < count; j++) top = x[j] == x[j] ? std::max(top, std::abs(x[j])) : INFINITY;
    return top;
  }

  // W = V times the i-th matrix of core k; returns the size of the largest part.
  double times(size_t k, long i) {
    const long r = ranks_[k], n = modes_[k], s = ranks_[k + 1];
    double *w = w_.data(), *turned = turned_.data();
    std::fill(w, w + kParts * s, 0.0);
    if (kParts == 2) std::fill(turned, turned + kParts * s, 0.0);
    for (long a = 0; a < r; a++) {
      const T* row = cores_[k] + kParts * (a * n + i) * s;
      const double x = v_[kParts * a];
      if constexpr (kParts == 1) {
        for (long j = 0; j < s; j++) w[j] += x * row[j];
      } else {  // x row and y row apart: nothing is exchanged within the sums
        const double y = v_[2 * a + 1];
        for (long j = 0; j < 2 * s; j++) w[j] += x * row[j];
        for (long j = 0; j < 2 * s; j++) turned[j] += y * row[j];
      }
    }
    if constexpr (kParts == 2)
      for (long j = 0; j < 2 * s; j += 2) w[j] -= turned[j + 1], w[j + 1] += turned[j];
    return largest(w_, kParts * s);
  }

  const std::vector<long>&modes_, &ranks_;
  const T* const* cores_;
  std::vector<double> v_, w_, turned_;
};

}  // namespace tensorjax
