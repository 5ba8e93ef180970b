// LAPACK by its Fortran interface: SciPy's, as JAX's own.
#pragma once

#include <mutex>

namespace tensorjax {

struct Lapack {
  void (*syevd)(char*, char*, int*, double*, int*, double*, double*, int*, int*, int*, int*);
  void (*gesdd)(char*, int*, int*, double*, int*, double*, double*, int*, double*, int*, double*,
                int*, int*, int*);
  // Of Hermitian matrices: real and imaginary parts by turns.
  void (*heevd)(char*, char*, int*, double*, int*, double*, double*, int*, double*, int*, int*,
                int*, int*);
  int (*threads)();  // of its BLAS; null where they cannot be told
  void (*set_threads)(int);
};

// While any of these lives, LAPACK runs in the thread that calls it: its own threads would wait for
// the cores that ours hold, at ten times the cost of what they do.
class Alone {
 public:
  explicit Alone(const Lapack& lapack) : lapack_(lapack) {
    if (!lapack_.threads || !lapack_.set_threads) return;
    std::lock_guard<std::mutex> hold(guard());
    if (living()++ == 0) {
      before() = lapack_.threads();
      lapack_.set_threads(1);
    }
  }
  ~Alone() {
    if (!lapack_.threads || !lapack_.set_threads) return;
    std::lock_guard<std::mutex> hold(guard());
    if (--living() == 0) lapack_.set_threads(before());
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  static std::mutex& guard() {
    static auto* one = new std::mutex;
    return *one;
  }
  static int& living() {
    static int count = 0;
    return count;
  }
  static int& before() {
    static int threads = 1;
    return threads;
  }

  const Lapack& lapack_;
};

}  // namespace tensorjax
