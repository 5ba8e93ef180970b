// Entry points of products, sums and sketches, for XLA: checks of operands, and items of a batch.
#pragma once

#include <algorithm>
#include <vector>

#include "buffers.h"
#include "entrywise.h"
#include "exact_products.h"
#include "scratch_and_threads.h"
#include "sketches.h"
#include "sums.h"

namespace tensorjax {

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
inline ffi::Error Product(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t sums) {
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
inline ffi::Error Multiply(ffi::RemainingArgs args, ffi::RemainingRets rets) {
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
inline ffi::Error Add(ffi::RemainingArgs args, ffi::RemainingRets rets) {
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
inline ffi::Error SketchRows(ffi::AnyBuffer x, ffi::AnyBuffer a, ffi::AnyBuffer c,
                             ffi::Result<ffi::AnyBuffer> y) {
  return guarded([&] {
    const ffi::DataType type = x.element_type();
    need(is_real(type), "float32 or float64 is needed");
    need_type({x, a, c, *y}, type);
    if (type == ffi::DataType::F64) sketch_all<double>(x, a, c, *y);
    else sketch_all<float>(x, a, c, *y);
  });
}

}  // namespace tensorjax
