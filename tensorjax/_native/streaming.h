// Copies that leave the caches alone: for what is read next by a disk, not here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tensorjax {

// Written without being read first, as ordinary stores to memory would.
inline void stream(const char* from, char* to, size_t bytes) {
#ifdef __x86_64__
  constexpr size_t kLine = 64;
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  if (bytes >= head + kLine) {
    std::memcpy(to, from, head);
    const size_t end = head + (bytes - head) / kLine * kLine;
    for (size_t at = head; at < end; at += kLine) {
      const auto* source = reinterpret_cast<const __m128i*>(from + at);
      auto* target = reinterpret_cast<__m128i*>(to + at);
      const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();  // before anybody is told that the copy is there
    std::memcpy(to + end, from + end, bytes - end);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace tensorjax
