// Old versions of the functions of glibc that moved into another library in its version 2.34, and of
// hypot, of which 2.35 has a faster one.
//
// A library that is linked on a new system asks for the new versions, and older systems have none
// of them: one wheel would not be installed on RHEL 8. Both do the same. The linker turns all calls,
// those of the static libstdc++ too, into calls of what is defined here (--wrap).
#include <features.h>

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#include <pthread.h>

#ifdef __x86_64__
#define OLD(name) __asm__(".symver old_" #name "," #name "@GLIBC_2.2.5")
#else
#define OLD(name) __asm__(".symver old_" #name "," #name "@GLIBC_2.17")
#endif

extern "C" {

OLD(pthread_create);
OLD(pthread_join);
OLD(pthread_once);
OLD(hypot);

int old_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int old_pthread_join(pthread_t, void**);
int old_pthread_once(pthread_once_t*, void (*)(void));
double old_hypot(double, double);

int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*run)(void*), void* argument) {
  return old_pthread_create(thread, attributes, run, argument);
}
int __wrap_pthread_join(pthread_t thread, void** result) { return old_pthread_join(thread, result); }
int __wrap_pthread_once(pthread_once_t* once, void (*run)(void)) {
  return old_pthread_once(once, run);
}

double __wrap_hypot(double x, double y) { return old_hypot(x, y); }

// New in glibc 2.32: whether libstdc++ may count without atomic operations. Not where threads are.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}
#endif
