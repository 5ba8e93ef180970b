// What the entry points share: LAPACK as it was set, scratch memory that is kept, thread counts.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "buffers.h"
#include "lapack.h"
#include "team.h"

namespace tensorjax {

inline Lapack lapack;

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

inline Blocks& blocks() {
  static auto* all = new Blocks;  // never destroyed: threads of JAX may outlive statics
  return *all;
}

constexpr double kWorth = 4e6;  // multiplications that outweigh the start of a thread

inline int threads_for(double work) {
  if (work < 2 * kWorth) return 1;  // small calls take no longer than to ask the system for its CPUs
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
#ifdef __linux__
  cpu_set_t allowed;
  if (!sched_getaffinity(0, sizeof allowed, &allowed)) cpus = CPU_COUNT(&allowed);
#endif
  return static_cast<int>(std::max(1.0, std::min({4.0, double(cpus), work / kWorth})));
}

}  // namespace tensorjax
