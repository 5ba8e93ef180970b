// The entry points: for XLA by its foreign-function interface, for the host by plain calls.

#include <cstdlib>
#include <memory>
#include <mutex>

#include "grams.h"
#include "passes.h"
#include "rounding.h"
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

int threads_for(double work) {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
#ifdef __linux__
  cpu_set_t allowed;
  if (!sched_getaffinity(0, sizeof allowed, &allowed)) cpus = CPU_COUNT(&allowed);
#endif
  constexpr double kWorth = 4e6;  // multiplications that outweigh the start of a thread
  return static_cast<int>(std::max(1.0, std::min({4.0, double(cpus), work / kWorth})));
}

// Multiplications of a rounding, about.
double work_of(const Sizes& s) {
  double work = 0;
  for (long k = 0; k < s.order; k++)
    work += double(s.n[k]) * s.r[k + 1] * (double(s.r[k]) * s.width + 3.0 * s.c[k] * s.c[k + 1] +
                                           double(s.c[k]) * s.r[k]);
  return work;
}

template <class T>
ffi::Error round_all(long batch, const Sizes& s, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const double work = work_of(s);
  const int threads = threads_for(work * batch);
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
    std::vector<const T*> cores;
    std::vector<T*> out;
    for (long k = 0; k < s.order; k++) {
      cores.push_back(args.get<ffi::AnyBuffer>(k + 2)->template typed_data<T>() +
                      item * s.r[k] * s.n[k] * s.r[k + 1]);
      out.push_back((*rets.get<ffi::AnyBuffer>(k))->template typed_data<T>() +
                    item * s.t[k] * s.n[k] * s.t[k + 1]);
    }
    long modes = 0;
    for (long n : s.n) modes += n;
    Rounding(s, lapack, inside, widen, lent[who].block.get())
        .run(team, cores.data(),
             args.get<ffi::AnyBuffer>(0)->template typed_data<T>() + item * modes * s.width,
             args.get<ffi::AnyBuffer>(1)->template typed_data<T>() + item * s.width * s.width,
             out.data());
  };
  {
    Team team(threads);
    if (alone) team.run(batch, [&](long item, int who) {
      Team single(1);
      round(single, item, who);
    });
    else if (batch == 1) round(team, 0, 0);  // nothing to do for an empty batch
  }
  for (auto& block : lent) blocks().give_back(std::move(block));
  return ffi::Error::Success();
}

// Operands: draw (…, Σn, w), mix (…, w, w), the cores (…, r, n, s); results: cores of ranks t. All
// of one dtype, float32 or float64, and one batch shape.
ffi::Error Round(ffi::RemainingArgs args, ffi::RemainingRets rets,
                 ffi::Span<const int64_t> ranks, ffi::Span<const int64_t> columns) {
  Sizes s;
  s.order = static_cast<long>(args.size()) - 2;
  const auto first = args.get<ffi::AnyBuffer>(2);
  if (s.order < 2 || !first.has_value())
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, "two cores at least are needed");
  long batch = 1;
  const auto shape = first->dimensions();
  for (size_t i = 0; i + 3 < shape.size(); i++) batch *= shape[i];
  s.r = s.t = s.c = {1};
  for (long k = 0; k < s.order; k++) {
    const auto dims = args.get<ffi::AnyBuffer>(k + 2)->dimensions();
    s.n.push_back(dims[dims.size() - 2]);
    s.r.push_back(dims[dims.size() - 1]);
    s.t.push_back(k + 1 < s.order ? ranks[k] : 1);
    s.c.push_back(k + 1 < s.order ? columns[k] : 1);
  }
  s.width = args.get<ffi::AnyBuffer>(1)->dimensions().back();
  if (first->element_type() == ffi::DataType::F64) return round_all<double>(batch, s, args, rets);
  if (first->element_type() == ffi::DataType::F32) return round_all<float>(batch, s, args, rets);
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "float32 or float64 is needed");
}

}  // namespace
}  // namespace tensorjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(tensorjax_round, tensorjax::Round,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets()
                                  .Attr<ffi::Span<const int64_t>>("ranks")
                                  .Attr<ffi::Span<const int64_t>>("columns"));

extern "C" void tensorjax_lapack(void* syevd, void* gesdd) {
  using tensorjax::lapack;
  lapack.syevd = reinterpret_cast<decltype(lapack.syevd)>(syevd);
  lapack.gesdd = reinterpret_cast<decltype(lapack.gesdd)>(gesdd);
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
  tensorjax::Team team(threads);
  tensorjax::GramRounding rounding(n, r, cores, tensorjax::lapack, threads);
  if (!rounding.run(team, share)) return 0;
  std::copy(rounding.ranks().begin(), rounding.ranks().end(), ranks);
  rounding.put(out);
  return 1;
}

extern "C" int tensorjax_interface() { return 1000 * XLA_FFI_API_MAJOR + XLA_FFI_API_MINOR; }

// G (rows × rows) = A Aᵀ, and P (few × columns) = Uᵀ A, for A (rows × columns) on the host.
extern "C" void tensorjax_gram(long rows, long columns, const double* a, double* g) {
  tensorjax::Team team(tensorjax::threads_for(0.5 * rows * rows * columns));
  tensorjax::wide_gram(team, rows, columns, a, g);
}

extern "C" void tensorjax_project(long rows, long columns, long few, const double* u,
                                  const double* a, double* p) {
  tensorjax::Team team(tensorjax::threads_for(1.0 * rows * few * columns));
  tensorjax::wide_project(team, rows, columns, few, u, a, p);
}
