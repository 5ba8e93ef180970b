// Entry point of rounding to fixed ranks, for XLA: checks of operands, and items of a batch.
#pragma once

#include <limits>
#include <type_traits>
#include <vector>

#include "buffers.h"
#include "rounding.h"
#include "scratch_and_threads.h"

namespace tensorjax {

// Multiplications of a rounding, about.
inline double work_of(const Sizes& s) {
  double work = 0;
  for (long k = 0; k < s.order; k++) {
    const double left = s.bond(k), right = s.bond(k + 1), n = s.n[k];
    const double through = s.product() ? left * s.j[k] * s.r[k + 1] : n * left * right;
    work += through * (s.width + s.c[k]) + 3 * n * right * s.c[k] * s.c[k + 1];
  }
  return work;
}

// Arrays of one item of a batch.
template <class T>
struct Item {
  std::vector<const T*> matrices, cores;
  std::vector<T*> out;
  const T *draw, *mix;

  Item(long item, const Sizes& s, const Buffers& args, const Buffers& rets) {
    const auto at = [&](size_t i, long size) { return args[i].typed_data<T>() + item * size; };
    long modes = 0;
    for (long n : s.n) modes += n;
    draw = at(0, modes * s.width);
    mix = at(1, s.width * s.width);
    const long d = s.order;
    for (long k = 0; k < d; k++) {
      if (s.product()) matrices.push_back(at(k + 2, s.a[k] * s.n[k] * s.j[k] * s.a[k + 1]));
      cores.push_back(at(k + 2 + (s.product() ? d : 0), s.cells(k)));
      out.push_back(rets[k].typed_data<T>() + item * s.t[k] * s.n[k] * s.t[k + 1]);
    }
  }
};

template <class T>
void round_all(long batch, const Sizes& s, const Buffers& args, const Buffers& rets) {
  const int threads = threads_for(work_of(s) * batch);
  const bool alone = batch > 1;  // each train by one thread
  const int inside = alone ? 1 : threads;
  const bool widen = !std::is_same_v<T, double>;
  const long needed = Rounding(s, lapack, inside, widen, nullptr).needed();
  std::vector<Blocks::Lent> lent;
  for (int i = 0; i < (alone ? threads : 1); i++) {
    lent.push_back(blocks().lend(needed));
    if (!lent.back().block) throw std::bad_alloc();
  }
  const auto round = [&](Team& team, long item, int who) {
    const Item<T> x(item, s, args, rets);
    Rounding(s, lapack, inside, widen, lent[who].block.get())
        .run(team, x.matrices.data(), x.cores.data(), x.draw, x.mix, x.out.data());
  };
  {
    const Alone without_others(lapack);
    Crew crew(threads);
    Team& team = *crew;
    if (alone) team.run(batch, [&](long item, int who) {
      Team single(1);
      round(single, item, who);
    });
    else if (batch == 1) round(team, 0, 0);  // nothing to do for an empty batch
  }
  for (auto& block : lent) blocks().give_back(std::move(block));
}

// Sizes of columns that LAPACK's 32-bit workspaces and ours have room for.
constexpr long kMostColumns = 1L << 14;

// Columns of bases and ranks that are kept: each no more than there are on either side of the bond.
inline void need_ranks(const Sizes& s) {
  double most = static_cast<double>(s.width), bond = 1, mode = 1;
  for (long k = 0; k < s.order; k++) {
    const long left = product_of({s.c[k], s.n[k]});
    const long there = product_of({s.product() ? s.a[k + 1] : 1, s.r[k + 1]});
    const long c = s.c[k + 1], t = s.t[k + 1];
    need(0 < t && t <= c && c <= std::min({left, there, kMostColumns}),
         "ranks up to the columns, and columns up to what a bond has, are needed");
    need(s.exact() || c <= s.width || k == s.order - 1, "columns up to the sketch's are needed");
    need(t <= product_of({s.t[k], s.n[k]}) && s.t[k] <= product_of({s.n[k], t}),
         "ranks that the modes allow are needed");
    most = std::max(most, static_cast<double>(padded(c)));
    bond = std::max(bond, static_cast<double>(product_of({s.product() ? s.a[k + 1] : 1,
                                                          padded(s.r[k + 1])})));
    mode = std::max(mode, static_cast<double>(s.n[k]) * (s.product() ? s.j[k] : 1));
  }
  // Every array of scratch is smaller: their sizes do not overflow.
  need(most * mode * bond * bond < 0x1p56, "sizes that memory can hold are needed");
}

// Shapes of a rounding's operands and results, all of which are checked.
inline Sizes sizes_of(const Batch& batch, const Buffers& args, const Buffers& rets,
                      ffi::Span<const int64_t> ranks, ffi::Span<const int64_t> columns) {
  Sizes s;
  s.order = static_cast<long>(rets.size());
  const long d = s.order;
  const bool product = static_cast<long>(args.size()) == 2 + 2 * d;
  const size_t first = product ? 2 + d : 2;
  need(d >= 2 && args.size() == first + d, "two cores at least are needed");
  need(static_cast<long>(ranks.size()) == d - 1 && static_cast<long>(columns.size()) == d - 1,
       "ranks and columns of every bond are needed");
  s.width = batch.shape(args[1], 2).back();
  s.r = s.t = s.c = {1};
  if (product) s.a = {1};
  need(!(product && s.exact()), "a sketch is needed for a product");
  long modes = 0, left = 1, above = 1;
  for (long k = 0; k < d; k++) {
    const std::vector<long> core = batch.core(args[k + first], 3, &left);
    s.n.push_back(core[1]);
    s.r.push_back(core[2]);
    s.t.push_back(k + 1 < d ? ranks[k] : 1);
    s.c.push_back(k + 1 < d ? columns[k] : 1);
    if (product) {
      const std::vector<long> matrix = batch.core(args[k + 2], 4, &above);
      need(matrix[2] == core[1], "matrices with as many columns as modes are needed");
      s.j.push_back(s.n[k]);
      s.n[k] = matrix[1];
      s.a.push_back(matrix[3]);
    }
    modes += s.n[k];
    batch.need_shape(rets[k], {s.t[k], s.n[k], s.t[k + 1]});
  }
  need(left == 1 && above == 1, "a last core with a last bond of 1 is needed");
  batch.need_shape(args[0], {modes, s.width});
  batch.need_shape(args[1], {s.width, s.width});
  need_ranks(s);
  return s;
}

// Operands: draw (…, Σn, w), mix (…, w, w), for a product the cores (…, a, n, j, b) of a matrix,
// then the cores (…, r, n, s); results: cores of ranks t. All of one dtype, float32 or float64, and
// one batch shape.
inline ffi::Error Round(ffi::RemainingArgs args, ffi::RemainingRets rets,
                        ffi::Span<const int64_t> ranks, ffi::Span<const int64_t> columns) {
  return guarded([&] {
    need(lapack.syevd && lapack.gesdd, "LAPACK is needed");
    const Buffers in = operands_of(args), out = results_of(rets);
    need(in.size() > 2, "two cores at least are needed");
    const ffi::DataType type = in[1].element_type();
    need(is_real(type), "float32 or float64 is needed");
    need_type(in, type);
    need_type(out, type);
    const Batch batch(in[1], 2);
    const Sizes s = sizes_of(batch, in, out, ranks, columns);
    if (type == ffi::DataType::F64) round_all<double>(batch.items(), s, in, out);
    else round_all<float>(batch.items(), s, in, out);
  });
}

}  // namespace tensorjax
