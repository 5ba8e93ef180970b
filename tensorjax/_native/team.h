// A few threads that share out the pieces of one step after another.
//
// Sweeps are long chains of steps of some ten microseconds. A step is cut into pieces, taken by
// whichever thread is free; it is over when all pieces are done, not when all threads have been
// there, so a thread that the system has put aside holds nothing up. Results depend on the pieces,
// never on who took them: they are the same, bit for bit, for every number of threads.
//
// A new thread, or one that sleeps, may take a millisecond to arrive, as long as a small sweep. So one
// team is kept from call to call, and its threads look out for work for a moment before they sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sched.h>
#include <unistd.h>
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
    settle();
    try {
      for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { help(i); });
    } catch (const std::system_error&) {  // the system gives no more: those that are there serve
    }
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    over_.store(true);
    wake();
    for (auto& thread : threads_) thread.join();
  }

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Says that whoever calls this is the one that works with the others from now on.
  void settle() {
#ifdef __linux__
    std::lock_guard<std::mutex> hold(guard_);
    if (sched_getaffinity(0, sizeof allowed_, &allowed_)) CPU_ZERO(&allowed_);
    maker_ = sched_getcpu();
#endif
    moves_.fetch_add(1);
  }

  // Calls step(piece, thread) for pieces 0 … count−1, and returns when all are done. What a step
  // throws is thrown here, by whichever thread it was taken.
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
    turn_.store(phase << 32 | static_cast<uint64_t>(count));
    if (asleep_.load()) wake();
    while (take(0)) {}
    for (long waited = 0; done_.load(std::memory_order_acquire) < count; waited++)
      waited < 4000 ? pause() : std::this_thread::yield();
    if (failed_.exchange(false)) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  // Takes one piece, if one is left. The low half of turn_ counts the pieces that are left, the
  // high half the steps: a piece of a step that is over cannot be taken.
  bool take(int who) {
    uint64_t turn = turn_.load(std::memory_order_acquire);
    while (turn & 0xffffffff) {
      if (!turn_.compare_exchange_weak(turn, turn - 1, std::memory_order_acq_rel)) continue;
      try {
        call_(step_, count_ - static_cast<long>(turn & 0xffffffff), who);
      } catch (...) {  // no memory: for whoever called `run`, not the end of the process
        std::lock_guard<std::mutex> hold(guard_);
        if (!failed_.load()) failure_ = std::current_exception();
        failed_.store(true);
      }
      done_.fetch_add(1, std::memory_order_acq_rel);
      return true;
    }
    return false;
  }

  void help(int who) {
    constexpr long kPatience = 20000;  // pauses before it sleeps, half a millisecond about
    uint64_t seen = 0;
    for (long idle = 0; !over_.load(std::memory_order_acquire);) {
      const uint64_t moves = moves_.load(std::memory_order_acquire);
      if (std::exchange(seen, moves) != moves) stay_off(who);
      if (take(who)) idle = 0;
      else if (idle++ < kPatience) pause();
      else sleep(), idle = 0;
    }
  }

  void sleep() {
    std::unique_lock<std::mutex> hold(guard_);
    asleep_.fetch_add(1);
    awake_.wait(hold, [&] { return over_.load() || (turn_.load() & 0xffffffff); });
    asleep_.fetch_sub(1);
  }

  void wake() {
    { std::lock_guard<std::mutex> hold(guard_); }  // nobody is between looking and sleeping
    awake_.notify_all();
  }

#ifdef __linux__
  // A thread often begins on the CPU of its maker, which is busy: the i-th other one is taken.
  void stay_off(int i) {
    cpu_set_t one;
    CPU_ZERO(&one);
    {
      std::lock_guard<std::mutex> hold(guard_);
      for (int c = 0, seen = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &allowed_) && c != maker_ && ++seen == i) CPU_SET(c, &one);
    }
    if (CPU_COUNT(&one)) sched_setaffinity(0, sizeof one, &one);
  }
  cpu_set_t allowed_;
  int maker_ = 0;
#else
  static void stay_off(int) {}
#endif

  std::vector<std::thread> threads_;
  void (*call_)(const void*, long, int) = nullptr;
  const void* step_ = nullptr;
  long count_ = 0;
  std::atomic<uint64_t> turn_{0};
  std::atomic<long> done_{0};
  std::atomic<bool> over_{false}, failed_{false};
  std::exception_ptr failure_;
  std::mutex guard_;
  std::condition_variable awake_;
  std::atomic<int> asleep_{0};
  std::atomic<uint64_t> moves_{0};
};

// A team for one call: the one that is kept, if it is free and of this size, else a new one.
class Crew {
 public:
  explicit Crew(int size) {
    if (size == 1) {
      team_ = std::make_unique<Team>(1);
      return;
    }
    Keeper& keeper = the_keeper();
    {
      std::lock_guard<std::mutex> hold(keeper.guard);
      if (keeper.process != process()) keeper.team.release();  // a fork has no threads but its own
      keeper.process = process();
      if (keeper.team && keeper.team->size() == size) team_ = std::move(keeper.team);
    }
    if (team_) team_->settle();
    else team_ = std::make_unique<Team>(size);
  }
  ~Crew() {
    Keeper& keeper = the_keeper();
    if (team_->size() == 1) return;
    std::lock_guard<std::mutex> hold(keeper.guard);
    std::swap(keeper.team, team_);  // one that was kept in the meantime ends
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  Team& operator*() const { return *team_; }

 private:
  struct Keeper {
    std::mutex guard;
    std::unique_ptr<Team> team;
    long process = -1;
  };
  static Keeper& the_keeper() {
    static auto* keeper = new Keeper;  // never destroyed: threads of JAX may outlive statics
    return *keeper;
  }
  static long process() {
#ifdef __linux__
    return getpid();
#else
    return 0;
#endif
  }

  std::unique_ptr<Team> team_;
};

}  // namespace tensorjax
