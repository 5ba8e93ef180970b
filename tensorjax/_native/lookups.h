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
#include "small_products.h"
#include "team.h"

namespace tensorjax {

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
  long first(long piece) const { return places[starts[piece]]; }

  // Where distinct ids from `begin` on, before `end`, stop to differ in the last mode, of size m, only.
  long group_end(const int32_t* ids, long m, long begin, long end) const {
    long at = begin + 1;
    while (at < end && ids[first(at)] / m == ids[first(begin)] / m) at++;
    return at;
  }

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
// without, for gradients; those of slices that the next id shares are not made again: ids ascend, so
// the left side seldom changes. Chain, cores and gates are not copied: they outlive it.
template <class T>
class RowMaker {
 public:
  RowMaker(const Chain& chain, const std::vector<const T*>& cores, const std::vector<const T*>& gates)
      : chain_(chain), cores_(cores), gates_(gates), place_(chain.order(), -1), row_(chain.cells),
        alone_(chain.meet == chain.order() - 1 && chain.last == chain.n.back()) {
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
    long first = c.order(), last = -1;  // of the cores whose slices change
    for (long k = c.order() - 1; k >= 0; k--, id /= c.m[k + 1]) {
      const long now = id % c.m[k];
      if (now == place_[k]) continue;
      first = k, last = std::max(last, k);
      next_place_[k] = now;
    }
    if (first < c.meet) flush();
    place_ = next_place_;
    for (long k = first; k < c.meet; k++) left(k);
    if (!alone_)
      for (long k = last; k >= c.meet; k--) right(k);
  }

  // (Π n) numbers, zeros among them.
  void row(long id, T* out) {
    sides(id);
    const Chain& c = chain_;
    const long at = c.meet, y = c.from(at);
    small_times<T>(c.before(at), y, c.r[at], {gated_[at - 1].data(), c.r[at], 1}, meeting(), width(),
                   out, y, false);
  }
  // The same, which stay until the next call.
  T* row(long id) {
    row(id, row_.data());
    return row_.data();
  }

  // Whether so many ids that differ in the last mode only are faster made by one product of the left
  // side and all slices of the last core, of which some are in vain.
  bool in_block(long count) const { return alone_ && count > 1 && 2 * count >= chain_.m.back(); }

  // The rows of all ids that differ from the one whose sides were made last in the last mode only:
  // (columns on the left side, mode, columns of the last core).
  const T* block() {
    const Chain& c = chain_;
    const long x = c.before(c.meet), wide = c.step(c.meet), r = c.r[c.meet];
    block_.resize(x * wide);
    small_times<T>(x, wide, r, {gated_[c.meet - 1].data(), r, 1}, cores_.back(), wide, block_.data(),
                   wide, false);
    return block_.data();
  }

  // A block of zeros, for what flows back from those rows.
  T* flow_block() {
    block_.assign(chain_.before(chain_.meet) * chain_.step(chain_.meet), T(0));
    return block_.data();
  }

  // Adds what flows back from the block, as `pull` from a row.
  void pull_block() {
    const Chain& c = chain_;
    const long x = c.before(c.meet), wide = c.step(c.meet), r = c.r[c.meet];
    if (turned_core_.empty()) transpose(r, wide, cores_.back(), wide, turned_core_);
    left_flow_.resize(x * r);
    small_times<T>(x, r, wide, {block_.data(), wide, 1}, turned_core_.data(), r, left_flow_.data(), r,
                   pending_);
    pending_ = true;
    small_times<T>(r, wide, x, {gated_[c.meet - 1].data(), 1, r}, block_.data(), wide,
                   to_cores_.back(), wide, true);
  }

  // Sets the arrays that `pull` adds to.
  void start(const std::vector<T*>& cores, const std::vector<T*>& gates) {
    to_cores_ = cores, to_gates_ = gates;
  }

  // Adds to the gradients what flows back from the row of the sides made last; the left side's when
  // that changes, or by `flush`.
  void pull(const T* flow) {
    const Chain& c = chain_;
    const std::vector<T*>&cores = to_cores_, &gates = to_gates_;
    const long at = c.meet, x = c.before(at), y = c.from(at), r = c.r[at];
    left_flow_.resize(x * r);
    small_times<T>(x, r, y, {flow, y, 1}, turned_meeting(), r, left_flow_.data(), r, pending_);
    pending_ = true;
    const View<const T> left{gated_[at - 1].data(), 1, r};
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

  // Adds what has flown back to the left side to the gradients of its cores and gates.
  void flush() {
    if (!std::exchange(pending_, false)) return;
    flow_.swap(left_flow_);
    for (long k = chain_.meet - 1; k >= 0; k--) pull_left(k, to_cores_[k], to_gates_[k]);
  }

 private:
  // The right side at the bond where both meet, its rows `width()` apart: where no other core is on
  // that side, the slice as it lies.
  const T* meeting() const { return alone_ ? slice(chain_.meet) : raw_[chain_.meet].data(); }
  long width() const { return alone_ ? chain_.step(chain_.meet) : chain_.from(chain_.meet); }

  // Its transpose, of slices that lie as they are kept for the next id with the same one.
  const T* turned_meeting() {
    const long y = chain_.from(chain_.meet), r = chain_.r[chain_.meet];
    if (!alone_) return transpose(r, y, meeting(), width(), turned_);
    kept_.resize(chain_.m.back());
    std::vector<T>& kept = kept_[place_.back()];
    return kept.empty() ? transpose(r, y, meeting(), width(), kept) : kept.data();
  }

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

  static const T* transpose(long rows, long columns, const T* from, long ld, std::vector<T>& to) {
    to.resize(rows * columns);
    for (long i = 0; i < rows; i++)
      for (long j = 0; j < columns; j++) to[j * rows + i] = from[i * ld + j];
    return to.data();
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
    transpose(c.r[k], wide, slice(k), c.step(k), turned_);
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
    transpose(s, y, gated_[k + 1].data(), y, turned_);
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
  std::vector<long> place_, next_place_ = place_;  // of the id in every mode
  std::vector<std::vector<T>> raw_, gated_;
  std::vector<T> row_, flow_, next_, turned_, left_flow_, block_, turned_core_;
  std::vector<std::vector<T>> kept_;
  std::vector<T*> to_cores_, to_gates_;
  bool alone_, pending_ = false;
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
  const bool whole = features == chain.cells;
  const auto make = [&](RowMaker<T>& maker, long id, T* to) {
    if (whole) return maker.row(id, to);
    const T* row = maker.row(id);
    for (long j = 0; j < features; j += chain.last, row += chain.n.back())
      std::copy(row, row + std::min(chain.last, features - j), to + j);
  };
  const long m = chain.m.back(), wide = chain.last;
  std::vector<long> groups = {0};
  while (groups.back() < found.distinct())
    groups.push_back(found.group_end(ids, m, groups.back(), found.distinct()));
  team.run(static_cast<long>(groups.size()) - 1, [&](long group, int who) {
    RowMaker<T>& maker = makers[who];
    const T* block = nullptr;
    if (maker.in_block(groups[group + 1] - groups[group])) {
      maker.sides(ids[found.first(groups[group])]);
      block = maker.block();
    }
    for (long piece = groups[group]; piece < groups[group + 1]; piece++) {
      const long* place = &found.places[found.starts[piece]];
      const long* end = found.places.data() + found.starts[piece + 1];
      T* first = out + *place * features;
      if (block) {
        const T* from = block + ids[*place] % m * wide;
        for (long j = 0; j < features; j += wide, from += m * wide)
          std::copy(from, from + std::min(wide, features - j), first + j);
      } else {
        make(maker, ids[*place], first);
      }
      while (++place < end) std::copy(first, first + features, out + *place * features);
    }
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
  const bool whole = features == chain.cells;
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
    RowMaker<T>& maker = makers[who];
    maker.start(my_cores, my_gates);
    // What flows to all places of an id: (Π n) numbers, zeros among them, that stay until the next call.
    const auto gather = [&](long piece) -> const T* {
      const long begin = found.starts[piece], end = found.starts[piece + 1];
      if (whole && end == begin + 1) return flow + found.places[begin] * features;
      std::fill(sum.begin(), sum.end(), T(0));
      const long run = whole ? features : chain.last, step = whole ? features : chain.n.back();
      for (long i = begin; i < end; i++) {
        const T* from = flow + found.places[i] * features;
        T* to = sum.data();
        for (long j = 0; j < features; j += run, to += step)
          for (long q = 0; q < std::min(run, features - j); q++) to[q] += from[j + q];
      }
      return sum.data();
    };
    const long m = chain.m.back(), end = found.distinct() * (part + 1) / parts;
    for (long piece = found.distinct() * part / parts; piece < end;) {
      const long stop = found.group_end(ids, m, piece, end);
      if (maker.in_block(stop - piece)) {
        maker.sides(ids[found.first(piece)]);
        T* block = maker.flow_block();
        for (; piece < stop; piece++) {
          const T* from = gather(piece);
          T* to = block + ids[found.first(piece)] % m * chain.last;
          for (long j = 0; j < chain.cells; j += chain.last, to += m * chain.last)
            std::copy(from + j, from + j + chain.last, to);
        }
        maker.pull_block();
      }
      for (; piece < stop; piece++) {
        maker.sides(ids[found.first(piece)]);
        maker.pull(gather(piece));
      }
    }
    maker.flush();
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
