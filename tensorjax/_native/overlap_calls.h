// Entry points of inner products and norms, for XLA: checks of operands, and items of a batch.
#pragma once

#include <algorithm>
#include <vector>

#include "buffers.h"
#include "complex_overlaps.h"
#include "overlaps.h"
#include "scratch_and_threads.h"

namespace tensorjax {

inline void inner_all(long batch, const Train* like,
                      const std::vector<std::vector<const double*>>& cores, double* m,
                      int32_t* e) {
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
inline ffi::Error Inner(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t order) {
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
inline void real_overlap(const Overlapped& both, const Buffers& in, bool root, const Buffers& out) {
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

inline ffi::DataType real_type_of(ffi::DataType type) {
  if (type == ffi::DataType::C64) return ffi::DataType::F32;
  return type == ffi::DataType::C128 ? ffi::DataType::F64 : type;
}

// Operands: as of `Inner`, without a batch, or float32 or complex. Result: the inner product itself,
// of conjugated x; with `root` its square root, which is real, for norms.
inline ffi::Error Overlaps(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t order,
                           int64_t root) {
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

}  // namespace tensorjax
