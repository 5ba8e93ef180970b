/* Copies that leave the caches alone: for what a disk reads next, and nobody here.
 *
 * A plain shared library, called through ctypes: it knows nothing of Python, so one serves all. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Written without being read first, as ordinary stores to memory would. */
static void copy(const char *from, char *to, size_t bytes)
{
#ifdef __SSE2__
    const size_t line = 64;
    const size_t head = (line - (uintptr_t)to % line) % line;

    if (bytes >= head + line) {
        const size_t end = head + (bytes - head) / line * line;

        memcpy(to, from, head);
        for (size_t at = head; at < end; at += line) {
            const __m128i *source = (const void *)(from + at);
            __m128i *target = (void *)(to + at);
            const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
            const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);

            _mm_stream_si128(target, a);
            _mm_stream_si128(target + 1, b);
            _mm_stream_si128(target + 2, c);
            _mm_stream_si128(target + 3, d);
        }
        memcpy(to + end, from + end, bytes - end);
        return;
    }
#endif
    memcpy(to, from, bytes);
}

static void fence(void)
{
#ifdef __SSE2__
    _mm_sfence(); /* before anybody is told that the copy is there */
#endif
}

void tensorjax_copy(const char *from, char *to, size_t bytes)
{
    copy(from, to, bytes);
    fence();
}

/* Copies `count` buffers, one behind the other, to where the target begins. */
void tensorjax_join(size_t count, const char *const *sources, const size_t *sizes, char *target)
{
    for (size_t i = 0; i < count; i++) {
        copy(sources[i], target, sizes[i]);
        target += sizes[i];
    }
    fence();
}
