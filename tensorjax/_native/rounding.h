// Rounding of a tensor train to given ranks, in double precision; see _by_sweeps in
// tensorjax/tt/_rounding/round.py.
//
// Notation: core k is (r_{k-1}, n_k, r_k), row-major, r_{-1} = r_{d-1} = 1. Left of bond k stands a
// basis Q_k W_k of c_k columns; in the end t_k of them are kept.
// The train may be a product A x that is never formed: of a matrix train A with cores (a, n, j, a'),
// and of x with cores (r, j, r'). Its bonds are pairs; rows of x's half are padded to whole vectors.
//
//  1. sketches   right factors F_k (r_k × w) by a random train, from the right
//  2. bases      from the left: Q_k W_k spans (core F_k), the rest of the core goes into the next
//  3. energies   Gram matrices of everything right of each bond, in those bases, from the right
//  4. cuts       their leading eigenvectors, all bonds at once
//  5. cores      each core between the cuts on both sides, all at once
//
// All cuts are taken of the same train, not one after another, so 4 and 5 run in parallel; the
// error is bounded by the root of the sum of squares of what each cut discards, as ever. A cut too
// deep for Gram matrices sends the train through singular value decompositions instead of 3 to 5.
// Where no basis is wider than asked there is nothing to cut, and they are left out. So it is where
// the columns of a sketch above the rank asked hold nothing new: the train has that rank, and they
// are dropped at once.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "householder.h"
#include "lapack.h"
#include "products.h"
#include "team.h"

namespace tensorjax {

struct Sizes {
  long order, width;              // width of the sketches; 0 for exact bases
  std::vector<long> n, r, t, c;   // n_k at k; r_k, t_k, c_k at k + 1, with 1 at both ends
  std::vector<long> a, j;         // of the matrix train: bonds and columns; none for a plain train

  bool exact() const { return width == 0; }
  bool product() const { return !a.empty(); }
  long rows(long k) const { return c[k] * n[k]; }
  long bond(long k) const { return product() ? a[k] * padded(r[k]) : r[k]; }  // k from 0 to d
  long cells(long k) const { return r[k] * (product() ? j[k] : n[k]) * r[k + 1]; }  // of core k
};

class Room {  // cuts arrays of whole cache lines out of one block; without a block it only counts
 public:
  explicit Room(double* base) : base_(base) {}
  double* take(long count) {
    double* at = base_ ? base_ + used_ : nullptr;
    used_ += (count + 15) / 8 * 8;
    return at;
  }
  long used() const { return used_; }

 private:
  double* base_;
  long used_ = 0;
};

class Rounding {
 public:
  Rounding(const Sizes& sizes, const Lapack& lapack, int threads, bool widen, double* base)
      : s_(sizes), lapack_(lapack), own_(threads), room_(base) {
    allocate(widen);
  }
  long needed() const { return room_.used(); }

  // Cores (matrices: of A, or none), draw (Σn × width) and mix (width × width) as JAX has them; out:
  // cores of ranks t. NaN or Inf in any core makes all of the result NaN.
  template <class T>
  void run(Team& team, const T* const* matrices, const T* const* cores, const T* draw, const T* mix,
           T* const* out) {
    read(team, cores, draw, mix);
    if (s_.product()) arrange(matrices);
    if (!s_.exact()) sketch(team);
    bases(team);
    if (!finite_) return fill(out);
    measure();
    if (s_.c == s_.t) return plain(team, out);
    energies(team);
    if (cut(team)) trim(team, out);
    else careful(out);
  }

 private:
  static constexpr long kAtOnce = 16;  // left indices of a piece of a sketch, at most

  // Rows shared out in up to four pieces, whatever the number of threads.
  struct Rows {
    long all, chunk, pieces;
    explicit Rows(long rows)
        : all(rows), chunk(rows < 64 ? rows : padded((rows + 3) / 4)),
          pieces((rows + chunk - 1) / chunk) {}
    long start(long piece) const { return piece * chunk; }
    long count(long piece) const { return std::min(chunk, all - start(piece)); }
  };

  long right(long k) const { return s_.bond(k + 1); }
  long basis(long k) const { return s_.c[k + 1]; }
  long kept(long k) const { return s_.t[k + 1]; }

  struct Own {  // scratch of a thread
    double *panel, *packed, *image, *square, *work;
    int* integers;
  };

  void allocate(bool widen) {
    const long d = s_.order, w = padded(s_.width);
    long columns = kPad, bonds = kPad, area = 1, rows = 1, mode = 1, cells = 1, between = 0, strip = 0;
    for (long k = 0; k < d; k++) {
      columns = std::max(columns, padded(basis(k)));
      bonds = std::max(bonds, padded(right(k)));
      rows = std::max(rows, s_.rows(k));
      area = std::max(area, s_.rows(k) * padded(right(k)));
      cells = std::max(cells, s_.r[k] * padded(right(k)));
      mode = std::max(mode, s_.n[k]);
      if (s_.product()) {
        const long a = s_.a[k], j = s_.j[k];
        between = std::max(between, s_.c[k] * a * j * padded(s_.r[k + 1]));
        strip = std::max(strip, w * (kAtOnce * (a + j * s_.a[k + 1]) + a * s_.n[k]));
      }
      modes_ += s_.n[k];
    }
    ld_ = columns;
    const long square = columns * columns;
    wide_.assign(d, nullptr);
    for (auto* list : {&f_, &q_, &w_, &g_, &u_, &seen_, &applied_}) list->assign(d, nullptr);
    for (long k = 0; k < d; k++) {
      if (widen) wide_[k] = room_.take(s_.cells(k));
      if (s_.product())
        for (auto* list : {&seen_, &applied_})
          (*list)[k] = room_.take(s_.a[k] * s_.n[k] * s_.j[k] * s_.a[k + 1]);
      if (k == d - 1) break;
      f_[k] = room_.take(right(k) * w);
      q_[k] = room_.take(s_.rows(k) * padded(basis(k)));
      for (auto* list : {&w_, &g_, &u_}) (*list)[k] = room_.take(square);
    }
    omega_ = room_.take(modes_ * w);
    mix_ = room_.take(s_.width * w);
    ones_ = room_.take(w);
    between_ = room_.take(between);
    for (auto& half : halves_) half = room_.take(area);
    y_ = room_.take(rows * columns);
    z_ = room_.take(columns * bonds);
    p_ = room_.take(columns * bonds);
    h_ = room_.take(square);
    inverse_ = room_.take(square);
    diagonal_ = room_.take(4 * columns);
    grams_.resize(4);
    parts_.resize(4);
    for (auto& part : grams_) part = room_.take(square);
    for (auto& part : parts_) part = room_.take(columns * bonds);
    for (auto& own : own_) {
      own.panel = room_.take(3 * kLanes * kDepth);
      own.packed = room_.take(cells);
      own.image = room_.take(std::max({kAtOnce * (mode + 1) * w, strip, 2 * rows * columns}));
      own.square = room_.take(2 * square);
      own.work = room_.take(1 + 6 * columns + 2 * square);
      own.integers = reinterpret_cast<int*>(room_.take(3 + 5 * columns));
    }
  }

  template <class T>
  void read(Team& team, const T* const* cores, const T* draw, const T* mix) {
    core_.resize(s_.order);
    if constexpr (std::is_same_v<T, double>) {
      for (long k = 0; k < s_.order; k++) core_[k] = cores[k];
    } else {
      team.run(s_.order, [&](long k, int) {
        std::copy(cores[k], cores[k] + s_.cells(k), wide_[k]);
        core_[k] = wide_[k];
      });
    }
    copy(draw, s_.exact() ? 0 : modes_, s_.width, omega_);
    copy(mix, s_.width, s_.width, mix_);
  }

  // Of A's cores: ((a, n), (j, a')) for sketches, ((n, a'), (a, j)) for the way back. Those far from
  // one go over a power of two: beside a core of x as large or small, products leave the range.
  template <class T>
  void arrange(const T* const* matrices) {
    std::fill(ones_, ones_ + padded(s_.width), 1.0);
    for (long k = 0; k < s_.order; k++) {
      const long a = s_.a[k], n = s_.n[k], j = s_.j[k], b = s_.a[k + 1];
      const T* from = matrices[k];
      double most = 0;
      for (long x = 0; x < a * n * j * b; x++)
        most = std::max(most, std::abs(static_cast<double>(from[x])));
      int e;
      double by = normaliser(most, &e);
      if (std::abs(e) < 64) by = 1;
      else exponent_ += e;
      for (long x = 0; x < a; x++)
        for (long i = 0; i < n; i++)
          for (long l = 0; l < j; l++)
            for (long y = 0; y < b; y++, from++) {
              seen_[k][((x * n + i) * j + l) * b + y] = by * *from;
              applied_[k][((i * b + y) * a + x) * j + l] = by * *from;
            }
    }
  }

  template <class T>
  static void copy(const T* from, long rows, long columns, double* to) {  // rows of whole vectors
    const long ld = padded(columns);
    for (long i = 0; i < rows; i++) {
      for (long j = 0; j < columns; j++) to[i * ld + j] = from[i * columns + j];
      std::fill(to + i * ld + columns, to + (i + 1) * ld, 0.0);
    }
  }

  // The largest magnitude; NaN where any entry is: as integers, their bits are above all others.
  static double largest(long rows, long columns, const double* a, long ld) {
    int64_t most = 0;
    for (long i = 0; i < rows; i++)
      for (long j = 0; j < columns; j++) {
        int64_t bits;
        std::memcpy(&bits, a + i * ld + j, sizeof bits);
        bits &= std::numeric_limits<int64_t>::max();
        most = bits > most ? bits : most;
      }
    double out;
    std::memcpy(&out, &most, sizeof out);
    return out;
  }

  // 2^-e that brings a largest entry of this size into [1/2, 1), and e.
  static double normaliser(double size, int* e) {
    *e = 0;
    if (size > 0 && std::isfinite(size)) std::frexp(size, e);
    return std::ldexp(1.0, -*e);
  }

  // 1. F_{k-1}[a, c] = Σ_i ω_i[c] (core_k[:, i] F_k)[a, c], then times the orthogonal mix.
  void sketch(Team& team) {
    const long d = s_.order, w = s_.width, ld = padded(w);
    const double* omega = omega_ + modes_ * ld;
    for (long k = d - 1; k > 0; k--) {
      const long n = s_.n[k], r = s_.r[k], s = right(k);
      omega -= n * ld;
      double* f = f_[k - 1];
      const long chunk = std::min(kAtOnce, (r + 7) / 8);
      team.run((r + chunk - 1) / chunk, [&](long piece, int who) {
        const long a = piece * chunk, count = std::min(chunk, r - a);
        if (s_.product()) return sketch_product(k, a, count, omega, own_[who]);
        const double* core = core_[k] + a * n * s;
        double *sums = own_[who].image, *image = sums + kAtOnce * ld, *panel = own_[who].panel;
        if (k < d - 1) times(count * n, ld, s, core, s, 1, f_[k], ld, image, ld, panel);
        for (long b = 0; b < count; b++) {
          double* sum = sums + b * ld;
          std::fill(sum, sum + ld, 0.0);
          for (long i = 0; i < n; i++) {
            const double *seen = image + (b * n + i) * ld, *weight = omega + i * ld;
            if (k < d - 1)
              for (long j = 0; j < ld; j++) sum[j] += seen[j] * weight[j];
            else
              for (long j = 0; j < ld; j++) sum[j] += core[b * n + i] * weight[j];
          }
        }
        times(count, ld, w, sums, ld, 1, mix_, ld, f + a * ld, ld, panel);
      });
      int e;
      const long rows = s_.product() ? r * s_.a[k] : r;
      const double by = normaliser(largest(rows, w, f, ld), &e);
      for (long i = 0; i < rows * ld; i++) f[i] *= by;
    }
  }

  // The same of A x, for `count` rows of x's core; rows of F are (r, a), a fastest.
  void sketch_product(long k, long first, long count, const double* omega, Own& own) {
    const long w = s_.width, ld = padded(w), a = s_.a[k], n = s_.n[k], j = s_.j[k], b = s_.a[k + 1];
    const long s = s_.r[k + 1], block = j * b * ld;
    const double* f = k + 1 < s_.order ? f_[k] : ones_;
    double *sums = own.image, *image = sums + kAtOnce * a * ld, *both = image + kAtOnce * block;
    times(count * j, b * ld, s, core_[k] + first * j * s, s, 1, f, b * ld, image, b * ld, own.panel);
    for (long x = 0; x < count; x++) {
      times(a * n, ld, j * b, seen_[k], j * b, 1, image + x * block, ld, both, ld, own.panel);
      for (long y = 0; y < a; y++) {
        double* sum = sums + (x * a + y) * ld;
        std::fill(sum, sum + ld, 0.0);
        for (long i = 0; i < n; i++)
          for (long l = 0; l < ld; l++) sum[l] += both[(y * n + i) * ld + l] * omega[i * ld + l];
      }
    }
    times(count * a, ld, w, sums, ld, 1, mix_, ld, f_[k - 1] + first * a * ld, ld, own.panel);
  }

  // 2. From the left. Ends with the last core, (c × n), in last_, and the exponent of two.
  void bases(Team& team) {
    const double* a = halves_[1];
    std::fill(p_, p_ + padded(s_.bond(0)), 0.0);
    p_[0] = 1;
    absorb(team, 0, 1, halves_[1]);
    for (long k = 0; k + 1 < s_.order; k++) {
      const long rows = s_.rows(k), r = right(k), ld = padded(r);
      s_.c[k + 1] = std::min(basis(k), rows);  // the one on the left may have lost columns
      if (rows == basis(k)) whole(k, a);
      else if (s_.exact()) reflected(k, a);
      else orthonormalise(team, k, a);
      const long c = basis(k);
      int e;
      const double by = normaliser(largest(c, r, p_, ld), &e);
      exponent_ += e;
      a = halves_[k % 2];
      absorb(team, k + 1, by, halves_[k % 2]);
    }
    last_ = a;
  }

  // Bounds the exponent of the last core, which bases on its left may turn: its norm bounds entries.
  void measure() {
    const long rows = s_.rows(s_.order - 1);
    int more;
    normaliser(largest(rows, 1, last_, kPad), &own_exponent_);
    std::frexp(std::sqrt(static_cast<double>(rows)), &more);
    top_ = exponent_ + own_exponent_ + more;
  }

  void unit(double* a, long n, long ld) {
    std::fill(a, a + n * ld, 0.0);
    for (long i = 0; i < n; i++) a[i * ld + i] = 1;
  }

  // The basis of all there is.
  void whole(long k, const double* a) {
    unit(q_[k], basis(k), padded(basis(k)));
    unit(w_[k], basis(k), ld_);
    std::copy(a, a + basis(k) * padded(right(k)), p_);
  }

  // By reflections: the basis of an exact sweep.
  void reflected(long k, const double* a) {
    const long rows = s_.rows(k), c = basis(k), ld = padded(right(k)), wide = padded(c);
    std::copy(a, a + rows * ld, y_);
    householder(rows, c, right(k), y_, ld, q_[k], wide, p_, ld, own_[0].image);
    unit(w_[k], c, ld_);
  }

  // Shifted Cholesky QR twice, as linalg's `orthonormal_rows`: Q W spans A F.
  void orthonormalise(Team& team, long k, const double* a) {
    const long rows = s_.rows(k), r = right(k), ld = padded(r), wide = padded(basis(k));
    long c = basis(k);
    const bool all = r <= c;  // the sketch would be no smaller than A
    const double* y = all ? a : y_;
    const long ldy = all ? ld : wide;
    const Rows share(rows);
    double *q = q_[k], *shift = diagonal_, *pivots = shift + ld_, *scale = pivots + ld_;
    team.run(share.pieces, [&](long piece, int who) {
      const long from = share.start(piece), some = share.count(piece);
      double* panel = own_[who].panel;
      if (!all) sketched(k, some, a + from * ld, y_ + from * wide, panel);
      gram(some, c, y + from * ldy, ldy, grams_[piece], ld_, panel);
    });
    double trace = 0;
    summed(grams_, share.pieces, c, h_);
    for (long i = 0; i < c; i++) trace += h_[i * ld_ + i];
    std::fill(shift, shift + c, 8 * kEps * (trace > 0 ? trace : 1));
    inverse_factor(c, h_, ld_, shift, inverse_, pivots);
    team.run(share.pieces, [&](long piece, int who) {
      const long from = share.start(piece), some = share.count(piece);
      double *part = q + from * wide, *panel = own_[who].panel;
      times(some, wide, c, y + from * ldy, ldy, 1, inverse_, ld_, part, wide, panel, true);
      gram(some, c, part, wide, grams_[piece], ld_, panel);
      times(c, ld, some, part, 1, wide, a + from * ld, ld, parts_[piece], ld, panel);
    });
    summed(grams_, share.pieces, c, h_);
    for (long i = 0; i < c; i++) {
      const double square = h_[i * ld_ + i];
      scale[i] = square > 0 ? 1 / std::sqrt(square) : 0;
      // Long columns are nearly orthonormal; short ones may be parallel, and are kept from breaking.
      shift[i] = square > 0 ? (square > 0.5 ? 0 : 64 * kEps * c) : 1;
    }
    for (long i = 0; i < c; i++)
      for (long j = i; j < c; j++) h_[i * ld_ + j] *= scale[i] * scale[j];
    double* w = w_[k];
    inverse_factor(c, h_, ld_, shift, w, pivots);
    if (spent(scale, kept(k), c)) narrow(k, c = kept(k));
    const Rows few(c);
    // A pivot is the squared sine of the angle to the columns before: of a column in their span,
    // only roundoff is left.
    for (long i = 0; i < c; i++)
      for (long j = 0; j < ld_; j++)
        w[i * ld_ + j] = j < c && pivots[j] > std::sqrt(kEps) ? w[i * ld_ + j] * scale[i] : 0;
    team.run(few.pieces, [&](long part, int) {
      for (long i = few.start(part) * ld; i < (few.start(part) + few.count(part)) * ld; i++) {
        double sum = 0;
        for (long piece = 0; piece < share.pieces; piece++) sum += parts_[piece][i];
        z_[i] = sum;
      }
    });
    team.run(few.pieces, [&](long part, int who) {  // P = Wᵀ (Qᵀ A)
      const long from = few.start(part);
      times(few.count(part), ld, c, w + from, 1, ld_, z_, ld, p_ + from * ld, ld, own_[who].panel);
    });
  }

  // Whether no column `from` … `to` − 1 of A F is further than 90 eps ‖A F‖ from the span of those
  // before, of which h_ and `scale` know: they were divided by the root of 8 eps ‖A F‖² (plus their
  // squared distance from all columns on their left), then by their norms, and factorised. As images
  // of random vectors they say the same of A, with high probability.
  bool spent(const double* scale, long from, long to) const {
    for (long j = from; j < to; j++) {
      double distance = 0;
      for (long i = from; i <= j; i++) distance += h_[i * ld_ + j] * h_[i * ld_ + j];
      if (scale[j] > 0 && !(distance <= 1024 * kEps * scale[j] * scale[j])) return false;
    }
    return from < to;
  }

  void narrow(long k, long c) {  // drops columns of Q_k
    const long before = padded(basis(k)), wide = padded(c);
    double* q = q_[k];
    for (long i = 0; i < s_.rows(k); i++)
      for (long j = 0; j < wide; j++) q[i * wide + j] = j < c ? q[i * before + j] : 0;
    s_.c[k + 1] = c;
  }

  // Rows of A F_k.
  void sketched(long k, long rows, const double* a, double* y, double* panel) const {
    const long ld = padded(right(k)), wide = padded(basis(k)), width = padded(s_.width);
    if (!s_.product()) return times(rows, wide, right(k), a, ld, 1, f_[k], width, y, wide, panel);
    const long b = s_.a[k + 1], s = s_.r[k + 1];
    for (long x = 0; x < b; x++)
      times(rows, wide, s, a + x * padded(s), ld, 1, f_[k] + x * width, b * width, y, wide, panel,
            false, x > 0);
  }

  void summed(const std::vector<double*>& parts, long count, long n, double* out) const {
    for (long i = 0; i < n; i++)
      for (long j = i / kPad * kPad; j < padded(n); j++) {
        double sum = 0;
        for (long piece = 0; piece < count; piece++) sum += parts[piece][i * ld_ + j];
        out[i * ld_ + j] = sum;
      }
  }

  // Half = by · P core_k, (c × n × r) with rows of whole vectors. The core is read row by row.
  void absorb(Team& team, long k, double by, double* half) {
    if (s_.product()) absorb_product(team, k, by, half);
    else absorb_core(team, k, by, half);
    // Its squares must neither overflow nor vanish, however the norm is spread over the cores.
    int e;
    const double size = largest(1, slabs_.size(), slabs_.data(), slabs_.size());
    const double again = normaliser(size, &e);
    finite_ = finite_ && std::isfinite(size);
    if (std::abs(e) < 64) return;
    exponent_ += e;
    for (long i = 0; i < s_.rows(k) * padded(right(k)); i++) half[i] *= again;
  }

  void absorb_core(Team& team, long k, double by, double* half) {
    const long c = s_.c[k], r = s_.r[k], n = s_.n[k], s = right(k), ld = padded(s);
    const Panels panels(ld);
    const long ahead = team.size();  // the slice that this thread is likely to take next
    slabs_.assign(n, 0);
    team.run(n, [&](long i, int who) {
      double* packed = own_[who].packed;
      for (long a = 0; a < r; a++) {
        const double* row = core_[k] + (a * n + i) * s;
        if (i + ahead < n)
          for (long z = 0; z < s; z += 8) __builtin_prefetch(row + ahead * s + z, 0, 2);
        for (long x = 0; x < panels.count; x++) {
          const long j = panels.start(x), width = panels.start(x + 1) - j;
          double* to = packed + j * r + a * width;
          if (j + width <= s)
            for (long v = 0; v < width; v += kLanes) store(to + v, load(row + j + v) * by);
          else
            for (long v = 0; v < width; v++) to[v] = j + v < s ? row[j + v] * by : 0;
        }
      }
      for (long x = 0; x < panels.count; x++) {
        const long j = panels.start(x), width = panels.start(x + 1) - j;
        times_panel(c, width, r, p_, padded(r), 1, packed + j * r, half + i * ld + j, n * ld);
      }
      slabs_[i] = largest(c, s, half + i * ld, n * ld);
    });
  }

  // First x's core, slice by slice: (c, a, j, s), then A's.
  void absorb_product(Team& team, long k, double by, double* half) {
    const long c = s_.c[k], a = s_.a[k], b = s_.a[k + 1], n = s_.n[k], j = s_.j[k];
    const long r = s_.r[k], s = s_.r[k + 1], ld = padded(s), block = a * j * ld;
    const Panels panels(ld);
    team.run(j * panels.count, [&](long piece, int who) {
      const long i = piece / panels.count, x = piece % panels.count;
      const long from = panels.start(x), width = panels.start(x + 1) - from;
      double* packed = own_[who].packed;
      for (long y = 0; y < r; y++) {
        const double* row = core_[k] + (y * j + i) * s + from;
        for (long v = 0; v < width; v++) packed[y * width + v] = from + v < s ? row[v] * by : 0;
      }
      for (long y = 0; y < a; y++)
        times_panel(c, width, r, p_ + y * padded(r), a * padded(r), 1, packed,
                    between_ + (y * j + i) * ld + from, block);
    });
    slabs_.assign(c, 0);
    const Rows share(c);
    team.run(share.pieces, [&](long piece, int who) {
      for (long x = share.start(piece); x < share.start(piece) + share.count(piece); x++) {
        double* to = half + x * n * b * ld;
        times(n * b, ld, a * j, applied_[k], a * j, 1, between_ + x * block, ld, to, ld,
              own_[who].panel);
        slabs_[x] = largest(1, n * b * ld, to, n * b * ld);
      }
    });
  }

  // 3. G_k, whole, in the bases Q_k W_k.
  void energies(Team& team) {
    const long d = s_.order, n = s_.n[d - 1], c = basis(d - 2);
    for (long i = 0; i < c; i++)
      for (long j = 0; j <= i; j++) {
        double sum = 0;
        for (long x = 0; x < n; x++) sum += last_[(i * n + x) * kPad] * last_[(j * n + x) * kPad];
        g_[d - 2][i * ld_ + j] = g_[d - 2][j * ld_ + i] = sum;
      }
    for (long k = d - 2; k > 0; k--) {
      const long c = basis(k), wide = padded(c), rows = s_.rows(k), left = s_.c[k];
      const long long_row = s_.n[k] * wide;
      const Rows share(rows), few(c);
      double* turned = inverse_;  // Wᵀ
      for (long i = 0; i < c; i++)
        for (long j = 0; j < wide; j++) {
          turned[i * ld_ + j] = j < c ? w_[k][j * ld_ + i] : 0;
          if (j >= c) g_[k][i * ld_ + j] = 0;
        }
      team.run(few.pieces, [&](long part, int who) {  // H = W G Wᵀ
        const long from = few.start(part), some = few.count(part);
        double *x = own_[who].square, *panel = own_[who].panel;
        times(some, wide, c, w_[k] + from * ld_, ld_, 1, g_[k], ld_, x, ld_, panel);
        times(some, wide, c, x, ld_, 1, turned, ld_, h_ + from * ld_, ld_, panel);
      });
      team.run(share.pieces, [&](long piece, int who) {  // Q H, to go with Q
        const long from = share.start(piece);
        times(share.count(piece), wide, c, q_[k] + from * wide, wide, 1, h_, ld_, y_ + from * wide,
              wide, own_[who].panel);
      });
      double* g = g_[k - 1];
      const long sides = (left + kSide - 1) / kSide;
      team.run(sides, [&](long side, int) {
        const long i = side * kSide, some = std::min(kSide, left - i);
        for (long j = 0; j <= i; j += kSide)
          inner(some, std::min(kSide, left - j), long_row, y_ + i * long_row, long_row,
                q_[k] + j * long_row, long_row, g + i * ld_ + j, ld_);
      });
      for (long i = 0; i < left; i++)
        for (long j = i + 1; j < left; j++) g[i * ld_ + j] = g[j * ld_ + i];
    }
  }

  // 4. Leading eigenvectors (c × t) of every G_k. False if a cut is too deep for Gram matrices.
  bool cut(Team& team) {
    std::vector<char> deep(s_.order, 0);
    team.run(s_.order - 1, [&](long k, int who) {
      const long c = basis(k), t = kept(k);
      double *values = own_[who].square, *vectors = values + ld_, *u = u_[k];
      if (c == t) return unit(u, c, ld_);
      for (long i = 0; i < c; i++) std::copy(g_[k] + i * ld_, g_[k] + i * ld_ + c, vectors + i * c);
      char job = 'V', half = 'L';
      int n = c, info = 0, work = 1 + 6 * c + 2 * c * c, integers = 3 + 5 * c;
      lapack_.syevd(&job, &half, &n, vectors, &n, values, own_[who].work, &work,
                    own_[who].integers, &integers, &info);
      deep[k] = info != 0 || values[c - t] < 4 * kEps * values[c - 1];
      for (long i = 0; i < c; i++)
        for (long j = 0; j < ld_; j++) u[i * ld_ + j] = j < t ? vectors[(c - 1 - j) * c + i] : 0;
    });
    return std::find(deep.begin(), deep.end(), 1) == deep.end();
  }

  // 2^e, shared out over all cores where the last one could not hold it in the type T.
  template <class T>
  double scale_of(long k) const {
    using Limits = std::numeric_limits<T>;
    const long d = s_.order, whole = exponent_ + own_exponent_;
    const bool held = top_ < Limits::max_exponent && std::labs(exponent_) < 100 &&
                      whole >= Limits::min_exponent + Limits::digits;
    if (held) return k < d - 1 ? 1 : std::ldexp(1.0, static_cast<int>(exponent_));
    // Rounded down, and the rest by one each: toward zero, it might be all for the last core.
    const long rest = (whole % d + d) % d, share = (whole - rest) / d + (k < rest);
    return std::ldexp(1.0, static_cast<int>(k < d - 1 ? share : share - own_exponent_));
  }

  // 5. U_{k-1}ᵀ Q_k W_k U_k, for all k.
  template <class T>
  void trim(Team& team, T* const* out) {
    const long d = s_.order;
    team.run(d, [&](long k, int who) {
      const long left = s_.c[k], n = s_.n[k], rows = s_.rows(k), t = kept(k), before = s_.t[k];
      const double* part = last_;
      long ld = kPad;
      double *image = own_[who].image, *panel = own_[who].panel;
      if (k < d - 1) {
        const long c = basis(k);
        ld = padded(t);
        times(c, ld, c, w_[k], ld_, 1, u_[k], ld_, own_[who].square, ld_, panel);
        times(rows, ld, c, q_[k], padded(c), 1, own_[who].square, ld_, image, ld, panel);
        part = image;
      }
      if (k > 0) {
        double* both = own_[who].image + rows * ld_;
        times(before, n * ld, left, u_[k - 1], 1, ld_, part, n * ld, both, n * ld, panel);
        part = both;
      }
      put(part, before * n, t, ld, scale_of<T>(k), out[k]);
    });
  }

  // Instead of 3 to 5, where no basis is wider than asked: Q_k W_k as they are.
  template <class T>
  void plain(Team& team, T* const* out) const {
    const long d = s_.order;
    team.run(d, [&](long k, int who) {
      const long c = basis(k), wide = padded(c), rows = s_.rows(k);
      if (k == d - 1) return put(last_, rows, 1, kPad, scale_of<T>(k), out[k]);
      double* image = own_[who].image;
      times(rows, wide, c, q_[k], wide, 1, w_[k], ld_, image, wide, own_[who].panel, true);
      put(image, rows, c, wide, scale_of<T>(k), out[k]);
    });
  }

  template <class T>
  static void put(const double* from, long rows, long columns, long ld, double by, T* to) {
    for (long i = 0; i < rows; i++)
      for (long j = 0; j < columns; j++)
        to[i * columns + j] = static_cast<T>(from[i * ld + j] * by);
  }

  template <class T>
  void fill(T* const* out) const {
    for (long k = 0; k < s_.order; k++)
      std::fill(out[k], out[k] + s_.t[k] * s_.n[k] * kept(k), std::numeric_limits<T>::quiet_NaN());
  }

  // Instead of 3 to 5: cuts from right to left by singular values, which see below √eps.
  template <class T>
  void careful(T* const* out) {
    const long d = s_.order;
    double* panel = own_[0].panel;
    std::vector<double> next(last_, last_ + s_.rows(d - 1) * kPad), seen = next, core, turned;
    for (long k = d - 2; k >= 0; k--) {
      const long c = basis(k), t = kept(k), rows = s_.rows(k), wide = padded(t);
      const long across = s_.n[k + 1] * padded(kept(k + 1));
      std::vector<double> values, u = left_vectors(std::move(seen), c, across, t, &values);
      core.resize(t * across);
      times(t, across, c, u.data(), 1, wide, next.data(), across, core.data(), across, panel);
      put(core.data(), t * s_.n[k + 1], kept(k + 1), padded(kept(k + 1)), scale_of<T>(k + 1),
          out[k + 1]);
      turned.resize(c * wide);
      times(c, wide, c, w_[k], ld_, 1, u.data(), wide, turned.data(), wide, panel);
      next.resize(rows * wide);
      times(rows, wide, c, q_[k], padded(c), 1, turned.data(), wide, next.data(), wide, panel);
      seen = next;
      for (long i = 0; i < rows; i++)
        for (long j = 0; j < t; j++) seen[i * wide + j] *= values[j];
    }
    put(next.data(), s_.n[0], kept(0), padded(kept(0)), scale_of<T>(0), out[0]);
  }

  // The first t left singular vectors of a (rows × columns), in rows of whole vectors, and all
  // singular values.
  std::vector<double> left_vectors(std::vector<double> a, long rows, long columns, long t,
                                   std::vector<double>* values) const {
    const long few = std::min(rows, columns);
    char job = 'S';
    int m = columns, n = rows, small = few, info = 0, size = -1;  // LAPACK sees the transpose
    std::vector<double> left(columns * few), right(few * rows), u(rows * padded(t), 0.0), work(1);
    std::vector<int> integers(8 * few);
    values->assign(few, 0);
    for (int pass = 0; pass < 2; pass++) {
      lapack_.gesdd(&job, &m, &n, a.data(), &m, values->data(), left.data(), &m, right.data(),
                    &small, work.data(), &size, integers.data(), &info);
      if (pass == 0) work.resize(size = static_cast<int>(work[0]));
    }
    for (long i = 0; i < rows; i++)
      for (long b = 0; b < t; b++)
        u[i * padded(t) + b] = info ? std::numeric_limits<double>::quiet_NaN() : right[i * few + b];
    return u;
  }

  Sizes s_;  // its c: what is left of the columns that were planned
  const Lapack& lapack_;
  std::vector<Own> own_;
  Room room_;
  long ld_ = 0, modes_ = 0, exponent_ = 0, top_ = 0;  // ld_: of all small squares
  int own_exponent_ = 0;  // of the last core, as it is before 2^exponent_
  bool finite_ = true;
  std::vector<const double*> core_;
  std::vector<double> slabs_;
  std::vector<double*> wide_, f_, q_, w_, g_, u_, grams_, parts_;
  std::vector<double*> seen_, applied_;
  double *omega_, *mix_, *ones_, *between_, *halves_[2], *y_, *z_, *p_, *h_, *inverse_, *diagonal_;
  const double* last_ = nullptr;
};

}  // namespace tensorjax
