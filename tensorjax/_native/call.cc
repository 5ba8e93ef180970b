// The entry points: for XLA by its foreign-function interface, for the host by plain calls.

#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <string>

#include "entrywise.h"
#include "grams.h"
#include "lookups.h"
#include "passes.h"
#include "rounding.h"
#include "sketches.h"
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

  Item(long item, const Sizes& s, ffi::RemainingArgs args, ffi::RemainingRets rets) {
    const auto at = [&](size_t i, long size) {
      return args.get<ffi::AnyBuffer>(i)->template typed_data<T>() + item * size;
    };
    long modes = 0;
    for (long n : s.n) modes += n;
    draw = at(0, modes * s.width);
    mix = at(1, s.width * s.width);
    const long d = s.order;
    for (long k = 0; k < d; k++) {
      if (s.product()) matrices.push_back(at(k + 2, s.a[k] * s.n[k] * s.j[k] * s.a[k + 1]));
      cores.push_back(at(k + 2 + (s.product() ? d : 0), s.cells(k)));
      out.push_back((*rets.get<ffi::AnyBuffer>(k))->template typed_data<T>() +
                    item * s.t[k] * s.n[k] * s.t[k + 1]);
    }
  }
};

template <class T>
ffi::Error round_all(long batch, const Sizes& s, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const int threads = threads_for(work_of(s) * batch);
  const bool alone = batch > 1;  // each train by one thread
  const int inside = alone ? 1 : threads;
  const bool widen = !std::is_same_v<T, double>;
  const long needed = Rounding(s, lapack, inside, widen, nullptr).needed();
  std::vector<Blocks::Lent> lent;
  for (int i = 0; i < (alone ? threads : 1); i++) {
    lent.push_back(blocks().lend(needed));
    if (!lent.back().block) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "no memory");
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
  return ffi::Error::Success();
}

// Operands: draw (…, Σn, w), mix (…, w, w), for a product the cores (…, a, n, j, b) of a matrix,
// then the cores (…, r, n, s); results: cores of ranks t. All of one dtype, float32 or float64, and
// one batch shape.
ffi::Error Round(ffi::RemainingArgs args, ffi::RemainingRets rets,
                 ffi::Span<const int64_t> ranks, ffi::Span<const int64_t> columns) {
  Sizes s;
  s.order = static_cast<long>(rets.size());
  const bool product = static_cast<long>(args.size()) == 2 + 2 * s.order;
  const size_t first = product ? 2 + s.order : 2;
  if (s.order < 2 || args.size() != first + s.order)
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, "two cores at least are needed");
  long batch = 1;
  const auto mix = args.get<ffi::AnyBuffer>(1);
  const auto shape = mix->dimensions();
  for (size_t i = 0; i + 2 < shape.size(); i++) batch *= shape[i];
  s.width = shape.back();
  s.r = s.t = s.c = {1};
  if (product) s.a = {1};
  for (long k = 0; k < s.order; k++) {
    const auto dims = args.get<ffi::AnyBuffer>(k + first)->dimensions();
    s.n.push_back(dims[dims.size() - 2]);
    s.r.push_back(dims[dims.size() - 1]);
    s.t.push_back(k + 1 < s.order ? ranks[k] : 1);
    s.c.push_back(k + 1 < s.order ? columns[k] : 1);
    if (!product) continue;
    const auto matrix = args.get<ffi::AnyBuffer>(k + 2)->dimensions();
    s.j.push_back(s.n[k]);
    s.n[k] = matrix[matrix.size() - 3];
    s.a.push_back(matrix[matrix.size() - 1]);
  }
  if (mix->element_type() == ffi::DataType::F64) return round_all<double>(batch, s, args, rets);
  if (mix->element_type() == ffi::DataType::F32) return round_all<float>(batch, s, args, rets);
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "float32 or float64 is needed");
}

// Operands: cores (…, r, n, s) of x, then those of y, or none where y is x; all float64 and of one
// batch shape. Results: m (float64) and e (int32) of the inner product m 4^e.
ffi::Error Inner(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t order) {
  const long d = order, trains = static_cast<long>(args.size()) / order;
  Train like[2];
  std::vector<std::vector<const double*>> cores(trains);
  for (long t = 0; t < trains; t++) {
    like[t].r = {1};
    for (long k = 0; k < d; k++) {
      const auto core = args.get<ffi::AnyBuffer>(t * d + k);
      const auto dims = core->dimensions();
      like[t].n.push_back(dims[dims.size() - 2]);
      like[t].r.push_back(dims[dims.size() - 1]);
      cores[t].push_back(core->template typed_data<double>());
    }
  }
  long batch = 1;
  double work = 0;
  for (const long n : rets.get<ffi::AnyBuffer>(0).value()->dimensions()) batch *= n;
  const Train &x = like[0], &y = like[trains - 1];
  for (long k = 0; k < d; k++)
    work += 1.0 * x.n[k] * x.r[k] * y.r[k + 1] * (x.r[k + 1] + y.r[k]);
  double* m = rets.get<ffi::AnyBuffer>(0).value()->template typed_data<double>();
  int32_t* e = rets.get<ffi::AnyBuffer>(1).value()->template typed_data<int32_t>();
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
  return ffi::Error::Success();
}

template <class T>
ffi::Error multiply_all(long items, const std::vector<Pair>& pairs, ffi::RemainingArgs args,
                        ffi::RemainingRets rets) {
  const size_t d = pairs.size();
  long cells = 0;
  for (const Pair& p : pairs) cells += p.cells();
  Crew crew(threads_for(8.0 * cells * items));  // a number written costs as much as some products
  Team& team = *crew;
  for (long item = 0; item < items; item++) {
    std::vector<const T*> x, y;
    std::vector<T*> z;
    for (size_t k = 0; k < d; k++) {
      const Pair& p = pairs[k];
      x.push_back(args.get<ffi::AnyBuffer>(k)->template typed_data<T>() + item * p.r * p.n * p.s);
      y.push_back(args.get<ffi::AnyBuffer>(d + k)->template typed_data<T>() +
                  item * p.q * p.n * p.t);
      z.push_back((*rets.get<ffi::AnyBuffer>(k))->template typed_data<T>() + item * p.cells());
    }
    multiply_trains(team, pairs, x, y, z);
  }
  return ffi::Error::Success();
}

// Operands: cores (…, r, n, s) of x, then (…, q, n, t) of y; results: cores (…, r q, n, s t). All of
// one dtype, float32 or float64, and one batch shape.
ffi::Error Multiply(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const size_t d = rets.size();
  std::vector<Pair> pairs;
  long items = 1;
  for (size_t k = 0; k < d; k++) {
    const auto x = args.get<ffi::AnyBuffer>(k)->dimensions();
    const auto y = args.get<ffi::AnyBuffer>(d + k)->dimensions();
    const size_t lead = x.size() - 3;
    items = 1;
    for (size_t i = 0; i < lead; i++) items *= x[i];
    pairs.push_back({x[lead], y[lead], x[lead + 1], x[lead + 2], y[lead + 2]});
  }
  const auto type = args.get<ffi::AnyBuffer>(0)->element_type();
  if (type == ffi::DataType::F64) return multiply_all<double>(items, pairs, args, rets);
  if (type == ffi::DataType::F32) return multiply_all<float>(items, pairs, args, rets);
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "float32 or float64 is needed");
}

template <class T>
ffi::Error sketch_all(ffi::AnyBuffer x, ffi::AnyBuffer a, ffi::AnyBuffer c, ffi::AnyBuffer y) {
  const auto dx = x.dimensions(), da = a.dimensions(), dc = c.dimensions();
  const size_t lead = dx.size() - 3;
  long items = 1;
  for (size_t i = 0; i < lead; i++) items *= dx[i];
  const Sketch<T> sketch(dx[lead], dx[lead + 1], dx[lead + 2], da[lead + 1], da[lead + 2],
                         dc[lead + 2]);
  const auto at = [&](ffi::AnyBuffer of, long item) {
    return of.typed_data<T>() + (items ? item * static_cast<long>(of.element_count()) / items : 0);
  };
  Crew crew(threads_for(sketch.work()));
  Team& team = *crew;
  for (long item = 0; item < items; item++)
    sketch.run(team, at(x, item), at(a, item), at(c, item), at(y, item));
  return ffi::Error::Success();
}

// Operands: x (…, batch, n, m), A (…, n, j, r) and C (…, r, m, k); the result is (…, batch, j, k).
ffi::Error SketchRows(ffi::AnyBuffer x, ffi::AnyBuffer a, ffi::AnyBuffer c,
                      ffi::Result<ffi::AnyBuffer> y) {
  if (x.element_type() == ffi::DataType::F32) return sketch_all<float>(x, a, c, *y);
  if (x.element_type() == ffi::DataType::F64) return sketch_all<double>(x, a, c, *y);
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "float32 or float64 is needed");
}

// Operands of a lookup: ids (count), cores (r, m, n, s), gates (s) of all bonds but the outer ones.
long order_of(ffi::RemainingArgs args) { return static_cast<long>(args.size()) / 2; }

// What is wrong with them; empty if nothing is.
std::string lookup_fault(ffi::RemainingArgs args) {
  const long d = order_of(args);
  if (d < 2) return "two cores at least are needed";
  const auto ids = *args.get<ffi::AnyBuffer>(0);
  if (ids.element_type() != ffi::DataType::S32 || ids.dimensions().size() != 1)
    return "ids (count,) of int32 are needed";
  if (ids.element_count() > std::numeric_limits<uint32_t>::max()) return "too many ids";
  const auto type = args.get<ffi::AnyBuffer>(1)->element_type();
  if (type != ffi::DataType::F32 && type != ffi::DataType::F64) return "float32 or float64 is needed";
  long bond = 1, rows = 1;
  for (long k = 0; k < d; k++) {
    const auto core = *args.get<ffi::AnyBuffer>(1 + k);
    const auto shape = core.dimensions();
    if (core.element_type() != type || shape.size() != 4 || shape[0] != bond || !core.element_count())
      return "cores (r, m, n, s) of one type that fit together are needed, none of them empty";
    rows *= shape[1], bond = shape[3];
    if (k == d - 1) continue;
    const auto gate = *args.get<ffi::AnyBuffer>(1 + d + k);
    if (gate.element_type() != type || gate.dimensions().size() != 1 || gate.dimensions()[0] != bond)
      return "gates of the bonds' sizes and the cores' type are needed";
  }
  if (bond != 1) return "a last core with s = 1 is needed";
  const int32_t* at = ids.typed_data<int32_t>();
  for (size_t i = 0; i < ids.element_count(); i++)
    if (at[i] < 0 || at[i] > rows + 1) return "an id is out of range: " + std::to_string(at[i]);
  return "";
}

struct Lookup {
  Chain chain;
  const int32_t* ids;
  Occurrences found;

  explicit Lookup(ffi::RemainingArgs args)
      : chain(chain_of(args)),
        ids(args.get<ffi::AnyBuffer>(0)->typed_data<int32_t>()),
        found(ids, args.get<ffi::AnyBuffer>(0)->element_count(), chain.rows()) {}

 private:
  static Chain chain_of(ffi::RemainingArgs args) {
    std::vector<long> r = {1}, m, n;
    for (long k = 0; k < order_of(args); k++) {
      const auto core = args.get<ffi::AnyBuffer>(1 + k)->dimensions();
      m.push_back(core[1]), n.push_back(core[2]), r.push_back(core[3]);
    }
    return {r, m, n};
  }
};

template <class T>
std::vector<const T*> arrays(ffi::RemainingArgs args, long first, long count) {
  std::vector<const T*> out;
  for (long k = first; k < first + count; k++)
    out.push_back(args.get<ffi::AnyBuffer>(k)->template typed_data<T>());
  return out;
}

// The result: rows (count, features), the first columns of what the cores make.
template <class T>
void look_up_all(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const Lookup l(args);
  const long d = l.chain.order();
  auto out = *rets.get<ffi::AnyBuffer>(0);
  Crew crew(threads_for(l.chain.work * l.found.distinct()));
  look_up<T>(*crew, l.chain, arrays<T>(args, 1, d), arrays<T>(args, 1 + d, d - 1), l.ids, l.found,
             out->dimensions()[1], out->template typed_data<T>());
}

// One more operand: the flow (count, features). Results: gradients of the cores, then of the gates.
template <class T>
void pull_back_all(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const Lookup l(args);
  const long d = l.chain.order();
  const auto flow = *args.get<ffi::AnyBuffer>(2 * d);
  std::vector<T*> cores, gates;
  for (long k = 0; k < 2 * d - 1; k++)
    (k < d ? cores : gates).push_back((*rets.get<ffi::AnyBuffer>(k))->template typed_data<T>());
  // As many multiplications again for each side, and more sums to add up.
  const double work = 3 * l.chain.work * l.found.distinct();
  const double each = kWorth + 16.0 * l.chain.numbers();
  const long parts = std::clamp(static_cast<long>(work / each), 1L, 4L);
  Crew crew(std::min(threads_for(work), static_cast<int>(parts)));
  pull_back<T>(*crew, parts, l.chain, arrays<T>(args, 1, d), arrays<T>(args, 1 + d, d - 1), l.ids,
               l.found, flow.dimensions()[1], flow.template typed_data<T>(), cores, gates);
}

template <class Float, class Double>
ffi::Error by_type(ffi::RemainingArgs args, ffi::RemainingRets rets, Float single, Double full) {
  if (const std::string fault = lookup_fault(args); !fault.empty())
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, fault);
  if (args.get<ffi::AnyBuffer>(1)->element_type() == ffi::DataType::F32) single(args, rets);
  else full(args, rets);
  return ffi::Error::Success();
}

ffi::Error LookUp(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return by_type(args, rets, look_up_all<float>, look_up_all<double>);
}

ffi::Error PullBack(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return by_type(args, rets, pull_back_all<float>, pull_back_all<double>);
}

}  // namespace
}  // namespace tensorjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_lookup, tensorjax::LookUp,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_lookup_gradient, tensorjax::PullBack,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_multiply, tensorjax::Multiply,
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

extern "C" void tensorjax_lapack(void* syevd, void* gesdd, void* threads, void* set_threads) {
  using tensorjax::lapack;
  lapack.syevd = reinterpret_cast<decltype(lapack.syevd)>(syevd);
  lapack.gesdd = reinterpret_cast<decltype(lapack.gesdd)>(gesdd);
  lapack.threads = reinterpret_cast<decltype(lapack.threads)>(threads);
  lapack.set_threads = reinterpret_cast<decltype(lapack.set_threads)>(set_threads);
}

// Lᵀ (m × n) with G = L Lᵀ up to roundoff; returns m.
extern "C" long tensorjax_factor(long n, const double* g, double roundoff, double* lower) {
  return tensorjax::pivoted_cholesky(n, n, g, roundoff, lower);
}

// Rounds to a share of the energy: `ranks` (d + 1) become those of the result, and its cores are
// written to `out`, one after another. 0 where Gram matrices are too coarse for that.
extern "C" long tensorjax_gram_round(long d, const int64_t* modes, int64_t* ranks,
                                     const double* const* cores, double share, double* out) {
  const std::vector<long> n(modes, modes + d), r(ranks, ranks + d + 1);
  double work = 0;
  for (long k = 0; k < d; k++) work += 3.0 * n[k] * r[k] * r[k + 1] * std::max(r[k], r[k + 1]);
  const int threads = tensorjax::threads_for(work);
  const tensorjax::Alone without_others(tensorjax::lapack);
  tensorjax::Crew crew(threads);
  tensorjax::Team& team = *crew;
  tensorjax::GramRounding rounding(n, r, cores, tensorjax::lapack, threads);
  if (!rounding.run(team, share)) return 0;
  std::copy(rounding.ranks().begin(), rounding.ranks().end(), ranks);
  rounding.put(out);
  return 1;
}

extern "C" int tensorjax_interface() { return 1000 * XLA_FFI_API_MAJOR + XLA_FFI_API_MINOR; }

// G (rows × rows) = A Aᵀ, and P (few × columns) = Uᵀ A, for A (rows × columns) on the host.
extern "C" void tensorjax_gram(long rows, long columns, const double* a, double* g) {
  tensorjax::Crew crew(tensorjax::threads_for(0.5 * rows * rows * columns));
  tensorjax::Team& team = *crew;
  tensorjax::wide_gram(team, rows, columns, a, g);
}

extern "C" void tensorjax_project(long rows, long columns, long few, const double* u,
                                  const double* a, double* p) {
  tensorjax::Crew crew(tensorjax::threads_for(1.0 * rows * few * columns));
  tensorjax::Team& team = *crew;
  tensorjax::wide_project(team, rows, columns, few, u, a, p);
}
