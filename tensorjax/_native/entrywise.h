// Entry-by-entry products of tensor trains, of all cores at once: z (ac, i, bd) = x (a, i, b) y (c, i, d).
//
// There is nothing to compute but what is written, and results of many megabytes lie in fresh memory,
// which the system hands out page by page: huge pages are asked for first.
#pragma once

#include <cstdint>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "team.h"

namespace tensorjax {

// Asks for huge pages where whole ones lie in a block that has not been touched yet.
inline void expect_writes(void* block, long bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = 4096, kHuge = 2 << 20;
  const uintptr_t from = (reinterpret_cast<uintptr_t>(block) + kPage - 1) / kPage * kPage;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(block) + bytes) / kPage * kPage;
  if (to > from + kHuge) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#endif
}

struct Pair {  // of cores (r, n, s) and (q, n, t)
  long r, q, n, s, t;
  long cells() const { return r * q * n * s * t; }
};

template <class T>
void multiply_row(const Pair& p, const T* x, const T* y, T* z) {
  for (long b = 0; b < p.s; b++, z += p.t) {
    const T left = x[b];
    for (long d = 0; d < p.t; d++) z[d] = left * y[d];
  }
}

template <class T>
void multiply_trains(Team& team, const std::vector<Pair>& pairs, const std::vector<const T*>& x,
                     const std::vector<const T*>& y, const std::vector<T*>& z) {
  struct Piece {
    size_t core;
    long row;  // a of x
  };
  std::vector<Piece> pieces;
  for (size_t k = 0; k < pairs.size(); k++) {
    expect_writes(z[k], pairs[k].cells() * sizeof(T));
    for (long a = 0; a < pairs[k].r; a++) pieces.push_back({k, a});
  }
  team.run(static_cast<long>(pieces.size()), [&](long i, int) {
    const auto [k, a] = pieces[i];
    const Pair& p = pairs[k];
    T* to = z[k] + a * (p.cells() / p.r);
    for (long c = 0; c < p.q; c++)
      for (long j = 0; j < p.n; j++, to += p.s * p.t)
        multiply_row(p, x[k] + (a * p.n + j) * p.s, y[k] + (c * p.n + j) * p.t, to);
  });
}

}  // namespace tensorjax
