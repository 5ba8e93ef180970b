// The entry points: for XLA by its foreign-function interface, for the host by plain calls.

#include <limits>
#include <memory>
#include <string>

#include "evaluation.h"
#include "grams.h"
#include "lookup_calls.h"
#include "overlap_calls.h"
#include "passes.h"
#include "product_and_sum_calls.h"
#include "rounding_call.h"
#include "scratch_and_threads.h"
#include "tt_svd.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

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
