// Operands and results of a call, held against what is asked of them before a number is read.
//
// Whoever makes a program decides what a handler is given: dtypes, ranks, sizes and attributes may be
// anything. What does not fit is an error of the call, never an assertion or a read out of bounds.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace tensorjax {

namespace ffi = xla::ffi;

struct Fault : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

inline void need(bool holds, const char* what) {
  if (!holds) throw Fault(what);
}

// The product of sizes; a fault where it is far beyond what memory holds, long before it overflows.
inline long product_of(std::initializer_list<long> sizes) {
  double all = 1;
  for (const long size : sizes) {
    need(size >= 0, "sizes that are not negative are needed");
    all *= static_cast<double>(size);
  }
  need(all < 0x1p56, "sizes that memory can hold are needed");
  long out = 1;
  for (const long size : sizes) out *= size;
  return out;
}

using Buffers = std::vector<ffi::AnyBuffer>;

inline Buffers operands_of(ffi::RemainingArgs args) {
  Buffers out;
  for (size_t i = 0; i < args.size(); i++) {
    const auto one = args.get<ffi::AnyBuffer>(i);
    need(one.has_value(), "operands that are arrays are needed");
    out.push_back(*one);
  }
  return out;
}

inline Buffers results_of(ffi::RemainingRets rets) {
  Buffers out;
  for (size_t i = 0; i < rets.size(); i++) {
    auto one = rets.get<ffi::AnyBuffer>(i);
    need(one.has_value(), "results that are arrays are needed");
    out.push_back(**one);
  }
  return out;
}

inline bool is_real(ffi::DataType type) {
  return type == ffi::DataType::F32 || type == ffi::DataType::F64;
}

inline void need_type(const Buffers& buffers, ffi::DataType type) {
  for (const auto& buffer : buffers)
    need(buffer.element_type() == type, "operands and results of one dtype are needed");
}

// Axes of a batch before the last few, the same for all that is held against it.
class Batch {
 public:
  Batch(const ffi::AnyBuffer& like, size_t rank) {
    const auto dims = like.dimensions();
    need(dims.size() >= rank, "an operand has too few axes");
    axes_.assign(dims.begin(), dims.end() - rank);
    for (const int64_t n : axes_) items_ = product_of({items_, n});
  }

  long items() const { return items_; }

  // The last `rank` sizes of a buffer that has no axes but these and those of the batch.
  std::vector<long> shape(const ffi::AnyBuffer& buffer, size_t rank) const {
    const auto dims = buffer.dimensions();
    need(dims.size() == axes_.size() + rank, "operands and results with other axes are needed");
    for (size_t i = 0; i < axes_.size(); i++)
      need(dims[i] == axes_[i], "operands and results with the same batch axes are needed");
    return {dims.begin() + axes_.size(), dims.end()};
  }

  // As `shape`, for a buffer that must have just these sizes.
  void need_shape(const ffi::AnyBuffer& buffer, const std::vector<long>& sizes) const {
    need(shape(buffer, sizes.size()) == sizes, "an operand or a result of another shape is needed");
  }

  // As `shape`, without a size of zero, for the next core of a train; `bond` becomes its last size.
  std::vector<long> core(const ffi::AnyBuffer& buffer, size_t rank, long* bond) const {
    std::vector<long> sizes = shape(buffer, rank);
    for (const long size : sizes) need(size > 0, "cores that are not empty are needed");
    need(sizes.front() == *bond, "cores whose bonds fit together, from 1 to 1, are needed");
    *bond = sizes.back();
    return sizes;
  }

 private:
  std::vector<long> axes_;
  long items_ = 1;
};

// Runs the body of a handler; what it throws is the error of the call.
template <class Body>
ffi::Error guarded(const Body& body) {
  try {
    body();
    return ffi::Error::Success();
  } catch (const Fault& fault) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, fault.what());
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "no memory");
  } catch (const std::exception& error) {  // a vector longer than any could be, for one
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, error.what());
  }
}

// The same for a plain call, which returns what the body does, or one of these.
constexpr long kInvalid = -1, kNoMemory = -2;
template <class Body>
long guarded_call(const Body& body) {
  try {
    return body();
  } catch (const Fault&) {
    return kInvalid;
  } catch (const std::exception&) {
    return kNoMemory;
  }
}

}  // namespace tensorjax
