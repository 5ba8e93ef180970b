// Entry points of embedding lookups and their gradients, for XLA: checks of operands.
#pragma once

#include <algorithm>
#include <vector>

#include "buffers.h"
#include "lookups.h"
#include "scratch_and_threads.h"

namespace tensorjax {

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

inline ffi::Error LookUp(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return guarded([&] {
    const Buffers in = operands_of(args), out = results_of(rets);
    need(in.size() % 2 == 0 && out.size() == 1, "ids, cores and gates, and one result are needed");
    const Lookup l(in);
    l.need_rows(out[0], Lookup::columns_of(in, l.order()));
    if (l.type() == ffi::DataType::F32) look_up_all<float>(l, out[0]);
    else look_up_all<double>(l, out[0]);
  });
}

inline ffi::Error PullBack(ffi::RemainingArgs args, ffi::RemainingRets rets) {
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

}  // namespace tensorjax
