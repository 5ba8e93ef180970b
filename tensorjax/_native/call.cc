// The entry points: for XLA by its foreign-function interface, for the host by plain calls.

#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <string>

#include "buffers.h"
#include "complex_overlaps.h"
#include "entrywise.h"
#include "evaluation.h"
#include "exact_products.h"
#include "grams.h"
#include "lookups.h"
#include "passes.h"
#include "rounding.h"
#include "sketches.h"
#include "sums.h"
#include "tt_svd.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace tensorjax {
namespace {

Lapack lapack;

// Blocks of scratch are kept, for fresh pages cost as much as a sweep over small trains.
class Blocks {
 public:
  using Block = std::unique_ptr<double, decltype(&std::free)>;
  struct Lent {
    Block block;
    long size;
  };

  Lent lend(long size) {
    {
      std::lock_guard<std::mutex> hold(guard_);
      for (auto& kept : kept_)
        if (kept.block && kept.size >= size) return std::exchange(kept, {Block(nullptr, free), 0});
    }
    const size_t bytes = (size * sizeof(double) + 4095) / 4096 * 4096;
    return {Block(static_cast<double*>(std::aligned_alloc(4096, bytes)), std::free), size};
  }

  void give_back(Lent lent) {
    constexpr long kMost = 8 << 20;  // numbers: 64 MiB
    if (lent.size > kMost) return;
    std::lock_guard<std::mutex> hold(guard_);
    auto* least = &kept_[0];
    for (auto& kept : kept_)
      if (kept.size < least->size) least = &kept;
    if (least->size < lent.size) *least = std::move(lent);
  }

 private:
  std::mutex guard_;
  Lent kept_[4] = {{Block(nullptr, std::free), 0}, {Block(nullptr, std::free), 0},
                   {Block(nullptr, std::free), 0}, {Block(nullptr, std::free), 0}};
};

Blocks& blocks() {
  static auto* all = new Blocks;  // never destroyed: threads of JAX may outlive statics
  return *all;
}

constexpr double kWorth = 4e6;  // multiplications that outweigh the start of a thread

int threads_for(double work) {
  if (work < 2 * kWorth) return 1;  // small calls take no longer than to ask the system for its CPUs
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
#ifdef __linux__
  cpu_set_t allowed;
  if (!sched_getaffinity(0, sizeof allowed, &allowed)) cpus = CPU_COUNT(&allowed);
#endif
  return static_cast<int>(std::max(1.0, std::min({4.0, double(cpus), work / kWorth})));
}

// Multiplications of a rounding, about.
double work_of(const Sizes& s) {
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
void need_ranks(const Sizes& s) {
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
Sizes sizes_of(const Batch& batch, const Buffers& args, const Buffers& rets,
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
ffi::Error Round(ffi::RemainingArgs args, ffi::RemainingRets rets,
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

void inner_all(long batch, const Train* like, const std::vector<std::vector<const double*>>& cores,
               double* m, int32_t* e) {
  const long trains = static_cast<long>(cores.size()), d = static_cast<long>(like[0].n.size());
  double work = 0;
  const Train &x = like[0], &y = like[trains - 1];
  for (long k = 0; k < d; k++) {
    product_of({x.r[k], x.n[k], y.r[k + 1], x.r[k + 1]});  // scratch is no larger
    product_of({y.r[k], y.n[k], y.r[k + 1], x.r[k + 1]});
    work += 1.0 * x.n[k] * x.r[k] * y.r[k + 1] * (x.r[k + 1] + y.r[k]);
  }
  const auto one = [&](Team& team, long item) {
    Train both[2] = {like[0], like[1]};
    for (long t = 0; t < trains; t++)
      for (long k = 0; k < d; k++)
        both[t].cores.push_back(cores[t][k] + item * both[t].r[k] * both[t].n[k] * both[t].r[k + 1]);
    long exponent = 0;
    Overlap(both[0], both[trains - 1]).run(team, m + item, &exponent);
    e[item] = static_cast<int32_t>(exponent);
  };
  Crew crew(threads_for(batch > 1 ? work * batch : std::min(work, 2 * kWorth)));
  Team& team = *crew;
  if (batch == 1) one(team, 0);
  else team.run(batch, [&](long item, int) {
    Team single(1);
    one(single, item);
  });
}

// Trains x and y, or x alone where y is x, and their cores.
struct Overlapped {
  Train like[2];
  long trains = 0;

  Overlapped(const Buffers& in, long d, const Batch& batch) {
    trains = d > 0 ? static_cast<long>(in.size()) / d : 0;
    need((trains == 1 || trains == 2) && static_cast<long>(in.size()) == trains * d,
         "the cores of one train or of two are needed");
    for (long t = 0; t < trains; t++) {
      long bond = 1;
      like[t].r = {1};
      for (long k = 0; k < d; k++) {
        const std::vector<long> core = batch.core(in[t * d + k], 3, &bond);
        like[t].n.push_back(core[1]);
        like[t].r.push_back(core[2]);
      }
      need(bond == 1, "a last core with a last bond of 1 is needed");
    }
    need(like[0].n == like[trains - 1].n, "trains of one shape are needed");
  }
};

// Operands: cores (…, r, n, s) of x, then those of y, or none where y is x; all float64 and of one
// batch shape. Results: m (float64) and e (int32) of the inner product m 4^e.
ffi::Error Inner(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t order) {
  return guarded([&] {
    const Buffers in = operands_of(args), out = results_of(rets);
    need_type(in, ffi::DataType::F64);
    need(out.size() == 2, "two results are needed");
    need(out[0].element_type() == ffi::DataType::F64 && out[1].element_type() == ffi::DataType::S32,
         "results of float64 and int32 are needed");
    const Batch batch(out[0], 0);
    batch.need_shape(out[1], {});
    const Overlapped both(in, order, batch);
    std::vector<std::vector<const double*>> cores(both.trains);
    for (size_t i = 0; i < in.size(); i++)
      cores[i / order].push_back(in[i].typed_data<double>());
    inner_all(batch.items(), both.like, cores, out[0].typed_data<double>(),
              out[1].typed_data<int32_t>());
  });
}

// The inner product, or with `root` its square root, of complex trains whose cores are `in`.
template <class R>
void complex_overlap(const Overlapped& both, const Buffers& in, bool root, const Buffers& out) {
  typename ComplexOverlap<R>::Cores cores[2];
  const size_t d = both.like[0].n.size();
  for (size_t i = 0; i < in.size(); i++)
    cores[i / d].push_back(reinterpret_cast<const ComplexOf<R>*>(in[i].untyped_data()));
  const long last = both.trains - 1;
  long e = 0;
  const Complex m = ComplexOverlap<R>(both.like[0], both.like[last], cores[0], cores[last]).run(&e);
  const auto scaled = [](double x, long by) {
    return static_cast<R>(std::ldexp(x, static_cast<int>(std::clamp(by, -9999L, 9999L))));
  };
  R* to = reinterpret_cast<R*>(out[0].untyped_data());
  if (root) {
    const long half = e >= 0 ? e / 2 : (e - 1) / 2;
    const double rest = std::ldexp(m.re, static_cast<int>(e - 2 * half));
    to[0] = rest <= 0 ? 0 : scaled(std::sqrt(rest), half);
  } else {
    to[0] = scaled(m.re, e);
    to[1] = scaled(m.im, e);
  }
}

// The same of real trains.
void real_overlap(const Overlapped& both, const Buffers& in, bool root, const Buffers& out) {
  std::vector<std::vector<const double*>> cores(both.trains);
  const size_t d = both.like[0].n.size();
  std::vector<Numbers> wide(in[0].element_type() == ffi::DataType::F32 ? in.size() : 0);
  for (size_t i = 0; i < in.size(); i++) {
    if (wide.empty()) {
      cores[i / d].push_back(in[i].typed_data<double>());
      continue;
    }
    const float* from = in[i].typed_data<float>();
    wide[i].assign(from, from + in[i].element_count());
    cores[i / d].push_back(wide[i].data());
  }
  double m = 0;
  int32_t e = 0;
  inner_all(1, both.like, cores, &m, &e);
  if (root) m = m <= 0 ? 0 : std::ldexp(std::sqrt(m), e);
  else m = std::ldexp(m, 2 * e);
  if (wide.empty()) *out[0].typed_data<double>() = m;
  else *out[0].typed_data<float>() = static_cast<float>(m);
}

ffi::DataType real_type_of(ffi::DataType type) {
  if (type == ffi::DataType::C64) return ffi::DataType::F32;
  return type == ffi::DataType::C128 ? ffi::DataType::F64 : type;
}

// Operands: as of `Inner`, without a batch, or float32 or complex. Result: the inner product itself,
// of conjugated x; with `root` its square root, which is real, for norms.
ffi::Error Overlaps(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t order, int64_t root) {
  return guarded([&] {
    const Buffers in = operands_of(args), out = results_of(rets);
    need(in.size() > 0 && out.size() == 1, "cores, and one result are needed");
    const ffi::DataType type = in[0].element_type();
    need(is_real(real_type_of(type)), "single or double precision is needed");
    need_type(in, type);
    need_type(out, root ? real_type_of(type) : type);
    const Batch none(out[0], 0);
    none.need_shape(out[0], {});
    need(none.items() == 1 && out[0].dimensions().size() == 0, "a scalar result is needed");
    const Overlapped both(in, order, none);
    if (type == ffi::DataType::C64) complex_overlap<float>(both, in, root, out);
    else if (type == ffi::DataType::C128) complex_overlap<double>(both, in, root, out);
    else real_overlap(both, in, root, out);
  });
}

// Cores of x and y and of their product, as the handler `Product` is given them.
struct Operands {
  bool sums;
  std::vector<Pair> pairs;  // entry by entry
  std::vector<Sum> matrices;  // over the columns of a matrix train
  std::vector<long> xs, ys;   // numbers in each core
  long terms = 1;
  double work = 0;

  Operands(bool sums, const Buffers& in, const Buffers& out) : sums(sums) {
    long left = 1, right = 1;
    const size_t d = out.size();
    for (size_t k = 0; k < d; k++) {
      const ffi::AnyBuffer &x = in[k], &y = in[d + k];
      const size_t axes = y.dimensions().size();
      need(axes == 3 || axes == 4, "cores of three or four axes are needed");
      const Batch none(y, axes);
      const auto a = none.core(x, sums ? 4 : axes, &left), b = none.core(y, axes, &right);
      xs.push_back(product_of({a[0], a[1], a[2], sums || axes == 4 ? a[3] : 1}));
      ys.push_back(product_of({b[0], b[1], b[2], axes == 4 ? b[3] : 1}));
      std::vector<long> shape = b;
      shape.front() = product_of({a.front(), b.front()});
      shape.back() = product_of({a.back(), b.back()});
      if (sums) {
        need(a[2] == b[1], "a matrix with as many columns as there are rows is needed");
        shape[1] = a[1];
        matrices.push_back({a[0], a[1], a[2], a[3], b[0], axes == 4 ? b[2] : 1, b.back()});
        terms = std::max(terms, a[2]);
        work += matrices.back().work();
      } else {
        need(std::equal(a.begin() + 1, a.end() - 1, b.begin() + 1), "equal modes are needed");
        const long n = product_of({a[1], axes == 4 ? a[2] : 1});
        pairs.push_back({a[0], b[0], n, a.back(), b.back()});
        work += 8.0 * pairs.back().cells();  // a number written costs as much as some products
      }
      product_of({shape[0], shape[1], shape[2], axes == 4 ? shape[3] : 1});
      none.need_shape(out[k], shape);
    }
    need(left == 1 && right == 1, "last cores with a last bond of 1 are needed");
  }
};

template <class T>
void exact_product(const Operands& o, const Buffers& in, const Buffers& out) {
  std::vector<const T*> x, y;
  std::vector<T*> z;
  const size_t d = out.size();
  for (size_t k = 0; k < d; k++) {
    x.push_back(static_cast<const T*>(in[k].untyped_data()));
    y.push_back(static_cast<const T*>(in[d + k].untyped_data()));
    z.push_back(static_cast<T*>(out[k].untyped_data()));
  }
  const InRange<T> copies(x, o.xs, &y, o.ys, o.terms);
  Crew crew(threads_for(o.work));
  if (o.sums) sum_trains(*crew, o.matrices, x, y, z);
  else multiply_trains(*crew, o.pairs, x, y, z);
}

// Operands: cores of x, then of y, all of one dtype, real or complex of single or double precision.
// With `sums`, x has cores (p, m, n, q) and y has (r, n, s) or (r, n, k, s); else both have three or
// four axes. Results: the cores of the product.
ffi::Error Product(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t sums) {
  return guarded([&] {
    const Buffers in = operands_of(args), out = results_of(rets);
    need(out.size() > 0 && in.size() == 2 * out.size(),
         "cores of two trains and of one result are needed");
    const ffi::DataType type = in[0].element_type();
    need_type(in, type);
    need_type(out, type);
    const Operands o(sums != 0, in, out);
    switch (type) {
      case ffi::DataType::F32: return exact_product<float>(o, in, out);
      case ffi::DataType::F64: return exact_product<double>(o, in, out);
      case ffi::DataType::C64: return exact_product<ComplexOf<float>>(o, in, out);
      case ffi::DataType::C128: return exact_product<ComplexOf<double>>(o, in, out);
      default: throw Fault("real or complex numbers of single or double precision are needed");
    }
  });
}

template <class T>
void multiply_all(long items, const std::vector<Pair>& pairs, const Buffers& args,
                  const Buffers& rets) {
  const size_t d = pairs.size();
  long cells = 0;
  std::vector<long> xs, ys;
  for (const Pair& p : pairs) {
    cells += p.cells();
    xs.push_back(p.r * p.n * p.s);
    ys.push_back(p.q * p.n * p.t);
  }
  Crew crew(threads_for(8.0 * cells * items));  // a number written costs as much as some products
  Team& team = *crew;
  for (long item = 0; item < items; item++) {
    std::vector<const T*> x, y;
    std::vector<T*> z;
    for (size_t k = 0; k < d; k++) {
      x.push_back(args[k].typed_data<T>() + item * xs[k]);
      y.push_back(args[d + k].typed_data<T>() + item * ys[k]);
      z.push_back(rets[k].typed_data<T>() + item * pairs[k].cells());
    }
    const InRange<T> copies(x, xs, &y, ys, 1);
    multiply_trains(team, pairs, x, y, z);
  }
}

// Operands: cores (…, r, n, s) of x, then (…, q, n, t) of y; results: cores (…, r q, n, s t). All of
// one dtype, float32 or float64, and one batch shape.
ffi::Error Multiply(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return guarded([&] {
    const Buffers in = operands_of(args), out = results_of(rets);
    const size_t d = out.size();
    need(d > 0 && in.size() == 2 * d, "cores of two trains and of one result are needed");
    const ffi::DataType type = in[0].element_type();
    need(is_real(type), "float32 or float64 is needed");
    need_type(in, type);
    need_type(out, type);
    const Batch batch(in[0], 3);
    std::vector<Pair> pairs;
    for (size_t k = 0; k < d; k++) {
      const auto x = batch.shape(in[k], 3), y = batch.shape(in[d + k], 3);
      need(x[1] == y[1], "cores with the same modes are needed");
      batch.need_shape(out[k], {product_of({x[0], y[0]}), x[1], product_of({x[2], y[2]})});
      pairs.push_back({x[0], y[0], x[1], x[2], y[2]});
    }
    if (type == ffi::DataType::F64) multiply_all<double>(batch.items(), pairs, in, out);
    else multiply_all<float>(batch.items(), pairs, in, out);
  });
}

template <class T>
void add_all(long items, const std::vector<Summands>& cores, long parts, const Buffers& args,
             const Buffers& rets) {
  const size_t d = cores.size();
  long cells = 0;
  for (const Summands& c : cores) cells += c.rows() * c.n * c.columns() * parts;
  Crew crew(threads_for(8.0 * cells * items));
  Team& team = *crew;
  const auto at = [](const ffi::AnyBuffer& buffer, long size, long item) {
    return static_cast<T*>(buffer.untyped_data()) + item * size;
  };
  for (long item = 0; item < items; item++) {
    std::vector<const T*> x, y;
    std::vector<T*> z;
    for (size_t k = 0; k < d; k++) {
      const Summands& c = cores[k];
      x.push_back(at(args[k], c.r * c.n * c.s * parts, item));
      y.push_back(at(args[d + k], c.q * c.n * c.t * parts, item));
      z.push_back(at(rets[k], c.rows() * c.n * c.columns() * parts, item));
    }
    add_trains(team, cores, parts, x, y, z, rets[d].typed_data<int32_t>() + item * 2 * d);
  }
}

// Operands: cores (…, r, n, s) of x, then (…, q, n, t) of y; results: the cores of their sum, and the
// powers of two (…, 2 d) that the cores of both were multiplied by.
ffi::Error Add(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return guarded([&] {
    const Buffers in = operands_of(args), out = results_of(rets);
    const size_t d = out.size() - 1;
    need(out.size() > 2 && in.size() == 2 * d, "cores of two trains and of one result are needed");
    const ffi::DataType type = in[0].element_type();
    const bool is_complex = type == ffi::DataType::C64 || type == ffi::DataType::C128;
    need(is_real(type) || is_complex, "real or complex numbers are needed");
    need_type(in, type);
    need_type({out.begin(), out.end() - 1}, type);
    need(out[d].element_type() == ffi::DataType::S32, "powers of two in int32 are needed");
    const Batch batch(in[0], 3);
    std::vector<Summands> cores;
    for (size_t k = 0; k < d; k++) {
      const auto x = batch.shape(in[k], 3), y = batch.shape(in[d + k], 3);
      need(x[1] == y[1], "cores with the same modes are needed");
      const bool first = k == 0, last = k == d - 1;
      need(!first || (x[0] == 1 && y[0] == 1), "first cores with a first bond of 1 are needed");
      need(!last || (x[2] == 1 && y[2] == 1), "last cores with a last bond of 1 are needed");
      cores.push_back({x[0], y[0], x[1], x[2], y[2], first, last});
      product_of({cores[k].rows(), x[1], cores[k].columns(), 2});
      batch.need_shape(out[k], {cores[k].rows(), x[1], cores[k].columns()});
    }
    batch.need_shape(out[d], {static_cast<long>(2 * d)});
    const bool wide = type == ffi::DataType::F64 || type == ffi::DataType::C128;
    (wide ? add_all<double> : add_all<float>)(batch.items(), cores, is_complex ? 2 : 1, in, out);
  });
}

template <class T>
void sketch_all(const ffi::AnyBuffer& x, const ffi::AnyBuffer& a, const ffi::AnyBuffer& c,
                const ffi::AnyBuffer& y) {
  const Batch batch(x, 3);
  const long items = batch.items();
  const auto dx = batch.shape(x, 3), da = batch.shape(a, 3), dc = batch.shape(c, 3);
  const long n = dx[1], m = dx[2], j = da[1], r = da[2], k = dc[2];
  need(da[0] == n && dc[0] == r && dc[1] == m, "maps that fit the rows are needed");
  batch.need_shape(y, {dx[0], j, k});
  need(n > 0 && j > 0 && r > 0 && k > 0, "maps that are not empty are needed");
  need(m >= Sketch<T>::kLane, "rows of a vector at least are needed");
  product_of({j, r, m + Sketch<T>::kLane});  // the sums
  const Sketch<T> sketch(dx[0], n, m, j, r, k);
  const auto at = [&](const ffi::AnyBuffer& of, long item) {
    return of.typed_data<T>() + (items ? item * static_cast<long>(of.element_count()) / items : 0);
  };
  Crew crew(threads_for(sketch.work()));
  Team& team = *crew;
  for (long item = 0; item < items; item++)
    sketch.run(team, at(x, item), at(a, item), at(c, item), at(y, item));
}

// Operands: x (…, batch, n, m), A (…, n, j, r) and C (…, r, m, k); the result is (…, batch, j, k).
ffi::Error SketchRows(ffi::AnyBuffer x, ffi::AnyBuffer a, ffi::AnyBuffer c,
                      ffi::Result<ffi::AnyBuffer> y) {
  return guarded([&] {
    const ffi::DataType type = x.element_type();
    need(is_real(type), "float32 or float64 is needed");
    need_type({x, a, c, *y}, type);
    if (type == ffi::DataType::F64) sketch_all<double>(x, a, c, *y);
    else sketch_all<float>(x, a, c, *y);
  });
}

// Operands of a lookup: ids (count), cores (r, m, n, s), gates (s) of all bonds but the outer ones.
class Lookup {
 public:
  explicit Lookup(const Buffers& args)
      : args_(args), chain(chain_of(args)), ids(args[0].typed_data<int32_t>()),
        found(checked(args[0], chain.rows()), static_cast<long>(args[0].element_count()),
              chain.rows()) {}

  long order() const { return chain.order(); }
  ffi::DataType type() const { return args_[1].element_type(); }

  template <class T>
  std::vector<const T*> cores() const { return arrays<T>(1, order()); }
  template <class T>
  std::vector<const T*> gates() const { return arrays<T>(1 + order(), order() - 1); }

  // Of rows, or of what flows back from them.
  void need_rows(const ffi::AnyBuffer& rows, long columns) const {
    const auto dims = rows.dimensions();
    need(rows.element_type() == type() && dims.size() == 2, "rows of the cores' dtype are needed");
    need(dims[0] == static_cast<long>(args_[0].element_count()) && dims[1] <= columns,
         "as many rows as ids, no longer than the matrix's, are needed");
  }

 private:
  const Buffers& args_;

 public:
  const Chain chain;
  const int32_t* const ids;
  const Occurrences found;

  // Columns of the matrix.
  static long columns_of(const Buffers& args, long order) {
    long columns = 1;
    for (long k = 0; k < order; k++) columns = product_of({columns, args[1 + k].dimensions()[2]});
    return columns;
  }

 private:
  template <class T>
  std::vector<const T*> arrays(long first, long count) const {
    std::vector<const T*> out;
    for (long k = first; k < first + count; k++) out.push_back(args_[k].typed_data<T>());
    return out;
  }

  static const int32_t* checked(const ffi::AnyBuffer& ids, long rows) {
    const int32_t* at = ids.typed_data<int32_t>();
    for (size_t i = 0; i < ids.element_count(); i++)
      if (at[i] < 0 || at[i] > rows + 1)
        throw Fault("an id is out of range: " + std::to_string(at[i]));
    return at;
  }

  static Chain chain_of(const Buffers& args) {
    const long d = static_cast<long>(args.size()) / 2;
    need(d >= 2, "two cores at least are needed");
    need(args[0].element_type() == ffi::DataType::S32 && args[0].dimensions().size() == 1,
         "ids (count,) of int32 are needed");
    need(args[0].element_count() <= std::numeric_limits<uint32_t>::max(), "too many ids");
    const ffi::DataType type = args[1].element_type();
    need(is_real(type), "float32 or float64 is needed");
    std::vector<long> r = {1}, m, n;
    long rows = 1, widest = 1;
    for (long k = 0; k < d; k++) {
      const ffi::AnyBuffer& core = args[1 + k];
      const auto shape = core.dimensions();
      need(core.element_type() == type && shape.size() == 4 && shape[0] == r.back() &&
               core.element_count(),
           "cores (r, m, n, s) of one type that fit together are needed, none of them empty");
      rows = product_of({rows, shape[1]});
      m.push_back(shape[1]), n.push_back(shape[2]), r.push_back(shape[3]);
      widest = std::max<long>(widest, shape[3]);
      if (k == d - 1) continue;
      const ffi::AnyBuffer& gate = args[1 + d + k];
      need(gate.element_type() == type && gate.dimensions().size() == 1 &&
               gate.dimensions()[0] == shape[3],
           "gates of the bonds' sizes and the cores' type are needed");
    }
    need(r.back() == 1, "a last core with s = 1 is needed");
    need(rows < std::numeric_limits<int32_t>::max() - 1, "rows that int32 can number are needed");
    product_of({columns_of(args, d), 2 * kPad, widest, widest});  // products of slices are smaller
    return {r, m, n};
  }
};

// The result: rows (count, features), the first columns of what the cores make.
template <class T>
void look_up_all(const Lookup& l, const ffi::AnyBuffer& out) {
  Crew crew(threads_for(l.chain.work * l.found.distinct()));
  look_up<T>(*crew, l.chain, l.cores<T>(), l.gates<T>(), l.ids, l.found, out.dimensions()[1],
             out.typed_data<T>());
}

// One more operand: the flow (count, features). Results: gradients of the cores, then of the gates.
template <class T>
void pull_back_all(const Lookup& l, const ffi::AnyBuffer& flow, const Buffers& rets) {
  const long d = l.order();
  std::vector<T*> cores, gates;
  for (long k = 0; k < 2 * d - 1; k++) (k < d ? cores : gates).push_back(rets[k].typed_data<T>());
  // As many multiplications again for each side, and more sums to add up.
  const double work = 3 * l.chain.work * l.found.distinct();
  const double each = kWorth + 16.0 * l.chain.numbers();
  const long parts = std::clamp(static_cast<long>(work / each), 1L, 4L);
  Crew crew(std::min(threads_for(work), static_cast<int>(parts)));
  pull_back<T>(*crew, parts, l.chain, l.cores<T>(), l.gates<T>(), l.ids, l.found,
               flow.dimensions()[1], flow.typed_data<T>(), cores, gates);
}

ffi::Error LookUp(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return guarded([&] {
    const Buffers in = operands_of(args), out = results_of(rets);
    need(in.size() % 2 == 0 && out.size() == 1, "ids, cores and gates, and one result are needed");
    const Lookup l(in);
    l.need_rows(out[0], Lookup::columns_of(in, l.order()));
    if (l.type() == ffi::DataType::F32) look_up_all<float>(l, out[0]);
    else look_up_all<double>(l, out[0]);
  });
}

ffi::Error PullBack(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return guarded([&] {
    Buffers in = operands_of(args);
    const Buffers out = results_of(rets);
    need(in.size() % 2 == 1 && out.size() + 2 == in.size(),
         "ids, cores, gates and the flow are needed, and a gradient of each core and gate");
    const ffi::AnyBuffer flow = in.back();
    in.pop_back();
    const Lookup l(in);
    l.need_rows(flow, Lookup::columns_of(in, l.order()));
    for (size_t k = 0; k < out.size(); k++) {
      const auto wanted = in[1 + k].dimensions(), given = out[k].dimensions();
      need(out[k].element_type() == l.type() &&
               std::equal(wanted.begin(), wanted.end(), given.begin(), given.end()),
           "gradients of the shapes and the type of cores and gates are needed");
    }
    if (l.type() == ffi::DataType::F32) pull_back_all<float>(l, flow, out);
    else pull_back_all<double>(l, flow, out);
  });
}

}  // namespace
}  // namespace tensorjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_lookup, tensorjax::LookUp,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_lookup_gradient, tensorjax::PullBack,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_multiply, tensorjax::Multiply,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_product, tensorjax::Product,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets()
                                  .Attr<int64_t>("sums"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_overlap, tensorjax::Overlaps,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets()
                                  .Attr<int64_t>("order").Attr<int64_t>("root"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_add, tensorjax::Add,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_sketch, tensorjax::SketchRows,
                              ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_inner, tensorjax::Inner,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets()
                                  .Attr<int64_t>("order"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_round, tensorjax::Round,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets()
                                  .Attr<ffi::Span<const int64_t>>("ranks")
                                  .Attr<ffi::Span<const int64_t>>("columns"));

extern "C" void tensorjax_set_lapack(void* syevd, void* heevd, void* gesdd, void* threads,
                                 void* set_threads) {
  using tensorjax::lapack;
  lapack.syevd = reinterpret_cast<decltype(lapack.syevd)>(syevd);
  lapack.heevd = reinterpret_cast<decltype(lapack.heevd)>(heevd);
  lapack.gesdd = reinterpret_cast<decltype(lapack.gesdd)>(gesdd);
  lapack.threads = reinterpret_cast<decltype(lapack.threads)>(threads);
  lapack.set_threads = reinterpret_cast<decltype(lapack.set_threads)>(set_threads);
}

// Plain calls return kInvalid where sizes or pointers are wrong, and kNoMemory.

// Lᵀ (m × n) with G = L Lᵀ up to roundoff; returns m.
extern "C" long tensorjax_factor(long n, const double* g, double roundoff, double* lower) {
  using namespace tensorjax;
  return guarded_call([&] {
    need(n > 0 && g && lower, "a matrix is needed");
    product_of({n, n});
    return pivoted_cholesky(n, n, g, roundoff, lower);
  });
}

namespace tensorjax {
namespace {

// Of a train on the host; whether its bonds are within what LAPACK takes.
bool fits(long d, const int64_t* modes, const int64_t* ranks, const double* const* cores) {
  need(d >= 2 && modes && ranks && cores, "two cores at least are needed");
  need(ranks[0] == 1 && ranks[d] == 1, "outer bonds of 1 are needed");
  long widest = 1;
  for (long k = 0; k < d; k++) {
    need(modes[k] > 0 && ranks[k] > 0 && ranks[k + 1] > 0 && cores[k], "an empty core");
    product_of({ranks[k], modes[k], ranks[k + 1]});
    product_of({padded(ranks[k]), modes[k], padded(ranks[k + 1])});
    widest = std::max<long>(widest, ranks[k + 1]);
  }
  return widest <= kMostColumns;
}

// ‖A‖² of so many entries, summed in several parts.
double energy(const double* a, long count) {
  double parts[kLanes] = {};
  long i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (long lane = 0; lane < kLanes; lane++) parts[lane] += a[i + lane] * a[i + lane];
  for (; i < count; i++) parts[0] += a[i] * a[i];
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

// Whether products of the norms of a train's first cores are finite and within 2^±most. Without
// `log2`, whose version in newer C libraries would be asked for by the wheel.
bool at_hand(const std::vector<long>& n, const std::vector<long>& r, const double* const* cores,
             double most) {
  double share = 1, exponent = 0;  // the square of the product is share * 2^exponent
  for (size_t k = 0; k < n.size(); k++) {
    share *= energy(cores[k], r[k] * n[k] * r[k + 1]);
    int more = 0;
    share = std::frexp(share, &more);
    exponent += more;
    if (!(share > 0 && std::isfinite(share) && std::abs(exponent) < 2 * most)) return false;
  }
  return true;
}

}  // namespace
}  // namespace tensorjax

// Rounds to a share of the energy: `ranks` (d + 1) become those of the result, and its cores are
// written to `out`, one after another. 0 where Gram matrices are too coarse for that, or products of
// norms of cores leave 2^±most, if `most` is positive.
extern "C" long tensorjax_gram_round(long d, const int64_t* modes, int64_t* ranks,
                                     const double* const* cores, double share, double most,
                                     double* out) {
  using namespace tensorjax;
  return guarded_call([&]() -> long {
    need(lapack.syevd && out, "LAPACK and room for the result are needed");
    if (!fits(d, modes, ranks, cores) || !(share >= 0)) return 0;
    const std::vector<long> n(modes, modes + d), r(ranks, ranks + d + 1);
    if (most > 0 && !at_hand(n, r, cores, most)) return 0;
    double work = 0;
    for (long k = 0; k < d; k++) work += 3.0 * n[k] * r[k] * r[k + 1] * std::max(r[k], r[k + 1]);
    const int threads = threads_for(work);
    const Alone without_others(lapack);
    Crew crew(threads);
    Team& team = *crew;
    GramRounding rounding(n, r, cores, lapack, threads);
    if (!rounding.run(team, share)) return 0;
    std::copy(rounding.ranks().begin(), rounding.ranks().end(), ranks);
    rounding.put(out);
    return 1;
  });
}

// TT-SVD of a dense array of modes n, complex if `parts` is 2, in single precision if `single`:
// `ranks` (d + 1) and the cores, one after another, in the array's type. 0 where the array is not
// for this kernel.
extern "C" long tensorjax_tt_svd(long d, const int64_t* modes, long parts, long single,
                                 const void* x, double share, double noise, int64_t* ranks,
                                 void* out) {
  using namespace tensorjax;
  return guarded_call([&]() -> long {
    need(lapack.syevd && lapack.heevd && d >= 2 && modes && x && ranks && out,
         "LAPACK and an array are needed");
    need(parts == 1 || parts == 2, "one or two parts are needed");
    const std::vector<long> n(modes, modes + d);
    long size = 1;
    for (const long m : n) {
      need(m > 0, "modes that are not empty are needed");
      size = product_of({size, m, parts}) / parts;
    }
    if (!(share >= 0)) return 0;
    const Alone without_others(lapack);
    Crew crew(threads_for(16.0 * size * parts * parts));
    const auto run = [&](auto* typed) {
      using T = std::remove_const_t<std::remove_pointer_t<decltype(typed)>>;
      T* const to = static_cast<T*>(out);
      if (parts == 2)
        return SmallTTSVD<2, T>(n, share, noise, lapack).run(*crew, typed, ranks, to);
      return SmallTTSVD<1, T>(n, share, noise, lapack).run(*crew, typed, ranks, to);
    };
    return single ? run(static_cast<const float*>(x)) : run(static_cast<const double*>(x));
  });
}

// Entries of a train on the host at `count` multi-indices, each in [−n_k, n_k): complex if `parts`
// is 2, in single precision if `single`.
extern "C" long tensorjax_entries(long d, const int64_t* modes, const int64_t* ranks,
                                  const void* const* cores, long parts, long single, long count,
                                  const int64_t* ids, void* out) {
  using namespace tensorjax;
  return guarded_call([&]() -> long {
    need(d >= 1 && modes && ranks && cores, "one core at least is needed");
    need(count > 0 && ids && out, "multi-indices and room for their entries are needed");
    need(parts == 1 || parts == 2, "one or two parts are needed");
    need(ranks[0] == 1 && ranks[d] == 1, "outer bonds of 1 are needed");
    for (long k = 0; k < d; k++) {
      need(modes[k] > 0 && ranks[k + 1] > 0 && cores[k], "an empty core");
      product_of({ranks[k], modes[k], ranks[k + 1], parts});
    }
    product_of({count, d});
    const std::vector<long> n(modes, modes + d), r(ranks, ranks + d + 1);
    const auto run = [&](auto entries, auto* to) {
      for (long x = 0; x < count; x++)
        need(entries.at(ids + x * d, to + x * parts), "indices in range are needed");
    };
    const auto of = [&](auto* to) {
      using T = std::remove_pointer_t<decltype(to)>;
      const T* const* typed = reinterpret_cast<const T* const*>(cores);
      if (parts == 2) run(Entries<2, T>(n, r, typed), to);
      else run(Entries<1, T>(n, r, typed), to);
    };
    if (single) of(static_cast<float*>(out));
    else of(static_cast<double*>(out));
    return 1;
  });
}

// Digest of the sources that this library is built from, as the build gives it.
#ifndef TENSORJAX_SOURCES
#define TENSORJAX_SOURCES ""
#endif
extern "C" const char* tensorjax_sources() { return TENSORJAX_SOURCES; }

extern "C" int tensorjax_interface() { return 1000 * XLA_FFI_API_MAJOR + XLA_FFI_API_MINOR; }

// G (rows × rows) = A Aᴴ in double precision, of A on the host: complex if `parts` is 2, in single
// precision if `single`, with so many numbers from a row, or a column, to the next.
extern "C" long tensorjax_wide_gram(long rows, long columns, long parts, long single, long down,
                               long along, const void* a, double* g) {
  using namespace tensorjax;
  return guarded_call([&]() -> long {
    need(rows > 0 && columns > 0 && a && g, "a matrix that is not empty is needed");
    need((parts == 1 || parts == 2) && down >= 0 && along >= 0, "one or two parts are needed");
    product_of({rows, columns, parts});
    product_of({rows, rows, parts, parts, 16});
    Crew crew(threads_for(0.5 * rows * rows * parts * parts * columns));
    const auto run = [&](auto* typed) {
      wide_gram(*crew, Matrix<std::remove_const_t<std::remove_pointer_t<decltype(typed)>>>{
                           typed, rows, columns, parts, down, along}, g);
    };
    if (single) run(static_cast<const float*>(a));
    else run(static_cast<const double*>(a));
    return 0;
  });
}

// P (few × columns) = Uᵀ A, for A (rows × columns) on the host.
extern "C" long tensorjax_project(long rows, long columns, long few, const double* u,
                                  const double* a, double* p) {
  using namespace tensorjax;
  return guarded_call([&]() -> long {
    need(rows > 0 && columns > 0 && few > 0 && u && a && p, "matrices not empty are needed");
    product_of({rows, columns});
    product_of({std::max(rows, few), std::max(few, columns)});
    Crew crew(threads_for(1.0 * rows * few * columns));
    wide_project(*crew, Matrix<double>{a, rows, columns, 1, columns, 1}, few, u, p);
    return 0;
  });
}
