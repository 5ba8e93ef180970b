// Rows of a TT-matrix, and what flows back from them to its cores and gates.
//
// A row is a chain of slices of cores, one of each. By other means it is gathers that bring the slices
// together, and for a few ids small products, that cost; here products read slices where they lie and
// gradients are added where they belong. The chain is multiplied from both ends to the bond at which
// that is cheapest; ids that occur more than once are looked up once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "products.h"
#include "team.h"

namespace tensorjax {

// A matrix with rows and columns at any strides.
template <class T>
struct View {
  T* at;
  long row, column;
};

// A tile of C = A B or C += A B: `Rows` rows, `Wide` vectors V of columns; rows of B and C contiguous.
template <class T, class V, int Rows, int Wide>
inline void block(long depth, View<const T> a, const T* b, long ldb, T* c, long ldc, bool add) {
  constexpr int kCount = sizeof(V) / sizeof(T);
  const auto in = [](const T* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  };
  V sum[Rows][Wide];
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Wide; j++) sum[i][j] = add ? in(c + i * ldc + j * kCount) : V{};
  for (long p = 0; p < depth; p++) {
    V right[Wide];
    for (int j = 0; j < Wide; j++) right[j] = in(b + p * ldb + j * kCount);
    for (int i = 0; i < Rows; i++) {
      const T left = a.at[i * a.row + p * a.column];
      for (int j = 0; j < Wide; j++) sum[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Wide; j++) __builtin_memcpy(c + i * ldc + j * kCount, &sum[i][j], sizeof(V));
}

template <class T, class V, int Wide>
void blocks_down(long rows, long depth, View<const T> a, const T* b, long ldb, T* c, long ldc,
                 bool add) {
  long i = 0;
  const auto from = [&] { return View<const T>{a.at + i * a.row, a.row, a.column}; };
  for (; i + kRows <= rows; i += kRows)
    block<T, V, kRows, Wide>(depth, from(), b, ldb, c + i * ldc, ldc, add);
  if (kRows > 4 && i + 4 <= rows) {
    block<T, V, 4, Wide>(depth, from(), b, ldb, c + i * ldc, ldc, add);
    i += 4;
  }
  for (; i + 2 <= rows; i += 2)
    block<T, V, 2, Wide>(depth, from(), b, ldb, c + i * ldc, ldc, add);
  for (; i < rows; i++) block<T, V, 1, Wide>(depth, from(), b, ldb, c + i * ldc, ldc, add);
}

// What is left of the columns, in vectors of half the length and half of that.
template <class T, long Count>
void blocks_across(long rows, long columns, long depth, View<const T> a, const T* b, long ldb, T* c,
                   long ldc, bool add) {
  if constexpr (Count == 1) {
    for (long j = 0; j < columns; j++)
      blocks_down<T, T, 1>(rows, depth, a, b + j, ldb, c + j, ldc, add);
  } else {
    typedef T V __attribute__((vector_size(Count * sizeof(T))));
    long j = 0;
    for (; j + 3 * Count <= columns && columns - j != 4 * Count; j += 3 * Count)
      blocks_down<T, V, 3>(rows, depth, a, b + j, ldb, c + j, ldc, add);
    for (; j + 2 * Count <= columns; j += 2 * Count)
      blocks_down<T, V, 2>(rows, depth, a, b + j, ldb, c + j, ldc, add);
    for (; j + Count <= columns; j += Count)
      blocks_down<T, V, 1>(rows, depth, a, b + j, ldb, c + j, ldc, add);
    blocks_across<T, Count / 2>(rows, columns - j, depth, a, b + j, ldb, c + j, ldc, add);
  }
}

// C (rows × columns) = A B or C += A B; A has any strides, rows of B and C are contiguous.
template <class T>
void small_times(long rows, long columns, long depth, View<const T> a, const T* b, long ldb, T* c,
                 long ldc, bool add) {
  blocks_across<T, kBytes / sizeof(T)>(rows, columns, depth, a, b, ldb, c, ldc, add);
}

// The shapes of the cores (r_k, m_k, n_k, r_{k+1}), k = 0 … d−1, and the bond where both sides meet.
struct Chain {
  std::vector<long> r, m, n;
  long last;       // columns of the last core; n counts them in full vectors, the rest are zero
  long meet = 1;   // cores on the left side
  long cells = 1;  // of a row with zeros: Π n
  double work = 0;  // multiplications of a row

  Chain(std::vector<long> ranks, std::vector<long> rows, std::vector<long> columns)
      : r(std::move(ranks)), m(std::move(rows)), n(std::move(columns)), last(n.back()) {
    long& whole = n.back();
    for (whole = 1; whole < std::min(last, kPad);) whole *= 2;
    if (last > kPad) whole = padded(last);
    for (long k : n) cells *= k;
    for (long at = 1; at < order(); at++) {
      const double now = work_at(at);
      if (at == 1 || now < work) work = now, meet = at;
    }
  }
  long order() const { return static_cast<long>(m.size()); }
  long rows() const {
    long all = 1;
    for (long k : m) all *= k;
    return all;
  }
  // Of a slice: numbers in a row, and from one row to the next.
  long wide(long k) const { return k == order() - 1 ? last : n[k] * r[k + 1]; }
  long step(long k) const { return m[k] * wide(k); }
  long size(long k) const { return r[k] * step(k); }
  long numbers() const {
    long all = 0;
    for (long k = 0; k < order(); k++) all += size(k) + (k ? r[k] : 0);
    return all;
  }
  long before(long k) const { return product(0, k); }         // columns of the cores before k
  long from(long k) const { return product(k, order()); }

 private:
  long product(long a, long b) const {
    return std::accumulate(n.begin() + a, n.begin() + b, 1L, std::multiplies<long>());
  }
  double work_at(long at) const {
    double all = 1.0 * cells * r[at];
    for (long k = 1; k < at; k++) all += 1.0 * before(k) * r[k] * n[k] * r[k + 1];
    for (long k = at; k < order() - 1; k++) all += 1.0 * r[k] * n[k] * r[k + 1] * from(k + 1);
    return all;
  }
};

// Ids, each of those that have a row once, and where it occurs.
struct Occurrences {
  std::vector<long> places;  // all of the first id, then all of the second …
  std::vector<long> starts;  // of every distinct id, and the end

  Occurrences(const int32_t* ids, long count, long rows) : places(count) {
    rows <= 8 * count ? by_counting(ids, count, rows) : by_sorting(ids, count);
    long end = 0;
    for (; end < count && ids[places[end]] < rows; end++)
      if (!end || ids[places[end]] != ids[places[end - 1]]) starts.push_back(end);
    starts.push_back(end);
  }
  long distinct() const { return static_cast<long>(starts.size()) - 1; }

 private:
  void by_counting(const int32_t* ids, long count, long rows) {
    std::vector<long> next(rows + 3, 0);  // two that stand for no row, and the end
    for (long i = 0; i < count; i++) next[ids[i] + 1]++;
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (long i = 0; i < count; i++) places[next[ids[i]]++] = i;
  }

  void by_sorting(const int32_t* ids, long count) {
    std::vector<uint64_t> both(count);  // sorted faster than places by what they hold
    for (long i = 0; i < count; i++) both[i] = static_cast<uint64_t>(ids[i]) << 32 | i;
    std::sort(both.begin(), both.end());
    for (long i = 0; i < count; i++) places[i] = static_cast<long>(both[i] & 0xffffffff);
  }
};

// One row after another of one TT-matrix. Of side products those with gates are kept beside those
// without, for gradients. Chain, cores and gates are not copied: they outlive it.
template <class T>
class RowMaker {
 public:
  RowMaker(const Chain& chain, const std::vector<const T*>& cores, const std::vector<const T*>& gates)
      : chain_(chain), cores_(cores), gates_(gates), place_(chain.order()), row_(chain.cells) {
    for (long k = 0; k < chain.order(); k++) {
      const bool left = k < chain.meet;
      const long size = left ? chain.before(k + 1) * chain.r[k + 1] : chain.r[k] * chain.from(k);
      raw_.emplace_back(size);
      gated_.emplace_back(size);
    }
  }

  // What is left and right of the bond where both meet.
  void sides(long id) {
    const Chain& c = chain_;
    for (long k = c.order() - 1; k >= 0; k--) place_[k] = id % c.m[k], id /= c.m[k];
    for (long k = 0; k < c.meet; k++) left(k);
    for (long k = c.order() - 1; k >= c.meet; k--) right(k);
  }

  // (Π n) numbers, zeros among them, that stay until the next call.
  T* row(long id) {
    sides(id);
    const Chain& c = chain_;
    const long at = c.meet, y = c.from(at);
    small_times<T>(c.before(at), y, c.r[at], {gated_[at - 1].data(), c.r[at], 1}, raw_[at].data(), y,
                   row_.data(), y, false);
    return row_.data();
  }

  // Adds to the gradients what flows back from the row of the sides made last. `to` are slices' arrays.
  void pull(const T* flow, const std::vector<T*>& cores, const std::vector<T*>& gates) {
    const Chain& c = chain_;
    const long at = c.meet, x = c.before(at), y = c.from(at), r = c.r[at];
    flow_.resize(x * r);
    transpose(r, y, raw_[at].data(), y);
    small_times<T>(x, r, y, {flow, y, 1}, turned_.data(), r, flow_.data(), r, false);
    const View<const T> left{gated_[at - 1].data(), 1, r};
    for (long k = at - 1; k >= 0; k--) pull_left(k, cores[k], gates[k]);
    if (at == c.order() - 1) {
      T* to = cores[at] + place_[at] * c.last;
      small_times<T>(r, c.last, x, left, flow, y, to, c.step(at), true);
      return;
    }
    // From here the flow is transposed: (columns, bond).
    flow_.resize(y * r);
    small_times<T>(y, r, x, {flow, 1, y}, left.at, r, flow_.data(), r, false);
    for (long k = at; k < c.order(); k++) pull_right(k, cores[k], k > at ? gates[k - 1] : nullptr);
  }

 private:
  const T* slice(long k) const { return cores_[k] + place_[k] * chain_.wide(k); }

  // (columns so far, r_{k+1}) of cores 0 … k, and the same times the gate behind them.
  void left(long k) {
    const Chain& c = chain_;
    const long x = c.before(k), wide = c.n[k] * c.r[k + 1];
    T* to = raw_[k].data();
    if (k == 0) std::copy(slice(0), slice(0) + wide, to);
    else
      small_times<T>(x, wide, c.r[k], {gated_[k - 1].data(), c.r[k], 1}, slice(k), c.step(k), to, wide,
                     false);
    const T* gate = gates_[k];
    T* out = gated_[k].data();
    for (long i = 0; i < x * c.n[k]; i++, to += c.r[k + 1], out += c.r[k + 1])
      for (long b = 0; b < c.r[k + 1]; b++) out[b] = to[b] * gate[b];
  }

  // (r_k, columns from here) of cores k … d−1, and the same times the gate before them.
  void right(long k) {
    const Chain& c = chain_;
    const long y = c.from(k + 1), n = c.n[k], s = c.r[k + 1];
    T* to = raw_[k].data();
    for (long a = 0; a < c.r[k]; a++) {
      const T* from = slice(k) + a * c.step(k);
      if (k == c.order() - 1) std::fill(std::copy(from, from + c.last, to + a * n), to + (a + 1) * n, T(0));
      else small_times<T>(n, y, s, {from, s, 1}, gated_[k + 1].data(), y, to + a * n * y, y, false);
    }
    if (k == c.meet) return;  // the gate there belongs to the left side
    const T* gate = gates_[k - 1];
    for (long a = 0; a < c.r[k]; a++)
      for (long i = 0; i < n * y; i++) gated_[k][a * n * y + i] = to[a * n * y + i] * gate[a];
  }

  void transpose(long rows, long columns, const T* from, long ld) {
    turned_.resize(rows * columns);
    for (long i = 0; i < rows; i++)
      for (long j = 0; j < columns; j++) turned_[j * rows + i] = from[i * ld + j];
  }

  // The flow to (columns so far, r_{k+1}) with its gate becomes that of the core before.
  void pull_left(long k, T* core, T* gate) {
    const Chain& c = chain_;
    const long x = c.before(k), s = c.r[k + 1], wide = c.n[k] * s;
    for (long i = 0; i < x * c.n[k]; i++)
      for (long b = 0; b < s; b++) {
        T& f = flow_[i * s + b];
        gate[b] += raw_[k][i * s + b] * f;
        f *= gates_[k][b];
      }
    T* to = core + place_[k] * wide;
    if (k == 0) {
      for (long i = 0; i < wide; i++) to[i] += flow_[i];
      return;
    }
    small_times<T>(c.r[k], wide, x, {gated_[k - 1].data(), 1, c.r[k]}, flow_.data(), wide, to,
                   c.step(k), true);
    next_.resize(x * c.r[k]);
    transpose(c.r[k], wide, slice(k), c.step(k));
    small_times<T>(x, c.r[k], wide, {flow_.data(), wide, 1}, turned_.data(), c.r[k], next_.data(),
                   c.r[k], false);
    flow_.swap(next_);
  }

  // The flow (columns from here, r_k), with the gate before it if there is one, to the core behind.
  void pull_right(long k, T* core, T* gate) {
    const Chain& c = chain_;
    const long y = c.from(k + 1), n = c.n[k], r = c.r[k], s = c.r[k + 1];
    if (gate)
      for (long i = 0; i < n * y; i++)
        for (long a = 0; a < r; a++) {
          T& f = flow_[i * r + a];
          gate[a] += raw_[k][a * n * y + i] * f;
          f *= gates_[k - 1][a];
        }
    T* to = core + place_[k] * c.wide(k);
    if (k == c.order() - 1) {
      for (long a = 0; a < r; a++)
        for (long j = 0; j < c.last; j++) to[a * c.step(k) + j] += flow_[j * r + a];
      return;
    }
    transpose(s, y, gated_[k + 1].data(), y);
    next_.resize(y * s);
    for (long a = 0; a < r; a++) {
      const T* f = flow_.data() + a;
      small_times<T>(n, s, y, {f, y * r, r}, turned_.data(), s, to + a * c.step(k), s, true);
      small_times<T>(y, s, n, {f, r, y * r}, slice(k) + a * c.step(k), s, next_.data(), s, a > 0);
    }
    flow_.swap(next_);
  }

  const Chain& chain_;
  const std::vector<const T*>&cores_, &gates_;
  std::vector<long> place_;  // of the id in every mode
  std::vector<std::vector<T>> raw_, gated_;
  std::vector<T> row_, flow_, next_, turned_;
};

// Rows (count, features); an id from Π m on has a row of zeros, the next one of NaN.
template <class T>
void look_up(Team& team, const Chain& chain, const std::vector<const T*>& cores,
             const std::vector<const T*>& gates, const int32_t* ids, const Occurrences& found,
             long features, T* out) {
  const long rows = chain.rows(), count = static_cast<long>(found.places.size());
  for (long i = found.starts.back(); i < count; i++) {
    const long place = found.places[i];
    const T fill = ids[place] == rows ? T(0) : std::numeric_limits<T>::quiet_NaN();
    std::fill_n(out + place * features, features, fill);
  }
  std::vector<RowMaker<T>> makers(team.size(), RowMaker<T>(chain, cores, gates));
  team.run(found.distinct(), [&](long piece, int who) {
    const long* place = &found.places[found.starts[piece]];
    const long* end = found.places.data() + found.starts[piece + 1];
    const T* row = makers[who].row(ids[*place]);
    T* first = out + *place * features;
    for (long j = 0; j < features; j += chain.last, row += chain.n.back())
      std::copy(row, row + std::min(chain.last, features - j), first + j);
    while (++place < end) std::copy(first, first + features, out + *place * features);
  });
}

// Gradients of all cores and gates for the flow (count, features) to the rows. Ids are dealt out to
// so many `parts`, which have sums of their own: threads take parts, and change no result.
template <class T>
void pull_back(Team& team, long parts, const Chain& chain, const std::vector<const T*>& cores,
               const std::vector<const T*>& gates, const int32_t* ids, const Occurrences& found,
               long features, const T* flow, const std::vector<T*>& to_cores,
               const std::vector<T*>& to_gates) {
  std::vector<std::vector<T>> own(parts - 1, std::vector<T>(chain.numbers()));
  std::vector<std::vector<T>> sums(team.size(), std::vector<T>(chain.cells));
  std::vector<RowMaker<T>> makers(team.size(), RowMaker<T>(chain, cores, gates));
  team.run(parts, [&](long part, int who) {
    std::vector<T*> my_cores = to_cores, my_gates = to_gates;
    T* next = part ? own[part - 1].data() : nullptr;
    for (long k = 0; k < chain.order(); k++) {
      if (part) my_cores[k] = std::exchange(next, next + chain.size(k));
      else std::fill_n(my_cores[k], chain.size(k), T(0));
    }
    for (long k = 1; k < chain.order(); k++) {
      if (part) my_gates[k - 1] = std::exchange(next, next + chain.r[k]);
      else std::fill_n(my_gates[k - 1], chain.r[k], T(0));
    }
    std::vector<T>& sum = sums[who];
    const long end = found.distinct() * (part + 1) / parts;
    for (long piece = found.distinct() * part / parts; piece < end; piece++) {
      std::fill(sum.begin(), sum.end(), T(0));
      for (long i = found.starts[piece]; i < found.starts[piece + 1]; i++) {
        const T* from = flow + found.places[i] * features;
        T* to = sum.data();
        for (long j = 0; j < features; j += chain.last, to += chain.n.back())
          for (long q = 0; q < std::min(chain.last, features - j); q++) to[q] += from[j + q];
      }
      makers[who].sides(ids[found.places[found.starts[piece]]]);
      makers[who].pull(sum.data(), my_cores, my_gates);
    }
  });
  for (const auto& one : own) {
    const T* from = one.data();
    const auto add = [&](T* to, long count) {
      for (long i = 0; i < count; i++) to[i] += from[i];
      from += count;
    };
    for (long k = 0; k < chain.order(); k++) add(to_cores[k], chain.size(k));
    for (long k = 1; k < chain.order(); k++) add(to_gates[k - 1], chain.r[k]);
  }
}

}  // namespace tensorjax
