// A few threads that share out the pieces of one step after another.
//
// Sweeps are long chains of steps of some ten microseconds. A step is cut into pieces, taken by
// whichever thread is free; it is over when all pieces are done, not when all threads have been
// there, so a thread that the system has put aside holds nothing up. Results depend on the pieces,
// never on who took them: they are the same, bit for bit, for every number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

namespace tensorjax {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

class Team {
 public:
  explicit Team(int size) {
    for (int i = 1; i < size; i++) threads_.emplace_back([this, i, cpu = current_cpu()] {
      stay_off(cpu, i);
      help(i);
    });
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    over_.store(true, std::memory_order_release);
    for (auto& thread : threads_) thread.join();
  }

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls step(piece, thread) for pieces 0 … count−1, and returns when all are done.
  template <class Step>
  void run(long count, const Step& step) {
    if (threads_.empty() || count <= 1) {
      for (long piece = 0; piece < count; piece++) step(piece, 0);
      return;
    }
    call_ = [](const void* s, long piece, int who) { (*static_cast<const Step*>(s))(piece, who); };
    step_ = &step;
    count_ = count;
    done_.store(0, std::memory_order_relaxed);
    const uint64_t phase = (turn_.load(std::memory_order_relaxed) >> 32) + 1;
    turn_.store(phase << 32 | static_cast<uint64_t>(count), std::memory_order_release);
    while (take(0)) {}
    for (long waited = 0; done_.load(std::memory_order_acquire) < count; waited++)
      waited < 4000 ? pause() : std::this_thread::yield();
  }

 private:
  // Takes one piece, if one is left. The low half of turn_ counts the pieces that are left, the
  // high half the steps: a piece of a step that is over cannot be taken.
  bool take(int who) {
    uint64_t turn = turn_.load(std::memory_order_acquire);
    while (turn & 0xffffffff) {
      if (!turn_.compare_exchange_weak(turn, turn - 1, std::memory_order_acq_rel)) continue;
      call_(step_, count_ - static_cast<long>(turn & 0xffffffff), who);
      done_.fetch_add(1, std::memory_order_acq_rel);
      return true;
    }
    return false;
  }

  void help(int who) {
    long idle = 0;
    while (!over_.load(std::memory_order_acquire)) {
      if (take(who)) idle = 0;
      else idle++ < 20000 ? pause() : std::this_thread::yield();
    }
  }

#ifdef __linux__
  static int current_cpu() { return sched_getcpu(); }

  // A new thread often begins on the CPU of its maker, which is busy: the i-th other one is taken.
  static void stay_off(int cpu, int i) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    CPU_ZERO(&one);
    for (int c = 0, seen = 0; c < CPU_SETSIZE; c++)
      if (CPU_ISSET(c, &allowed) && c != cpu && ++seen == i) CPU_SET(c, &one);
    if (CPU_COUNT(&one)) sched_setaffinity(0, sizeof one, &one);
  }
#else
  static int current_cpu() { return 0; }
  static void stay_off(int, int) {}
#endif

  std::vector<std::thread> threads_;
  void (*call_)(const void*, long, int) = nullptr;
  const void* step_ = nullptr;
  long count_ = 0;
  std::atomic<uint64_t> turn_{0};
  std::atomic<long> done_{0};
  std::atomic<bool> over_{false};
};

}  // namespace tensorjax
