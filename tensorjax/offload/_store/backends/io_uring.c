/* A ring of io_uring: transfers at offsets of files, from and to memory that stays put.
 *
 * The kernel is called directly, by the numbers and layouts that its interface has had since Linux
 * 5.6: no liburing and no header of the building machine's kernel decide whether this is built.
 * A plain shared library, called through ctypes. One thread owns a ring. All calls return -errno
 * where they fail. Source: io_uring(7), io_uring_setup(2), io_uring_enter(2), io_uring_register(2). */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall(2) */
#endif
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

/* Numbers of the calls: the same on all architectures of Linux but Alpha. */
enum { CALL_SETUP = 425, CALL_ENTER = 426, CALL_REGISTER = 427 };
enum { SETUP_IOPOLL = 1, SETUP_SQPOLL = 2 };
enum { FEATURE_SINGLE_MAP = 1 };
enum { ENTER_GET_EVENTS = 1, ENTER_WAKE_POLLER = 2 };
enum { POLLER_SLEEPS = 1, COMPLETIONS_OVERFLOW = 2, TASKS_WAIT = 4 };
enum { REGISTER_BUFFERS = 0, UNREGISTER_BUFFERS = 1 };
enum { READ_FIXED = 4, WRITE_FIXED = 5, READ = 22, WRITE = 23 };
#define MAP_SUBMISSIONS 0L
#define MAP_COMPLETIONS 0x8000000L
#define MAP_REQUESTS 0x10000000L
#define WAKE UINT64_MAX /* token of the read that watches the eventfd */

struct submission_offsets {
    uint32_t head, tail, mask, entries, flags, dropped, array, reserved;
    uint64_t user_address;
};

struct completion_offsets {
    uint32_t head, tail, mask, entries, overflow, completions, flags, reserved;
    uint64_t user_address;
};

struct parameters {
    uint32_t submissions, completions, flags, poller_cpu, poller_idle_ms, features, workers_file;
    uint32_t reserved[3];
    struct submission_offsets submission;
    struct completion_offsets completion;
};

struct request {
    uint8_t operation, flags;
    uint16_t priority;
    int32_t file;
    uint64_t offset, address;
    uint32_t size, operation_flags;
    uint64_t token;
    uint16_t buffer, personality;
    int32_t other_file;
    uint64_t unused[2];
};

struct completion {
    uint64_t token;
    int32_t result;
    uint32_t flags;
};

_Static_assert(sizeof(struct parameters) == 120, "struct io_uring_params");
_Static_assert(sizeof(struct request) == 64, "struct io_uring_sqe");
_Static_assert(sizeof(struct completion) == 16, "struct io_uring_cqe");

struct ring {
    int file, event;     /* the eventfd that ends a wait, or -1 */
    int watching;
    uint64_t events;     /* where the kernel puts what it reads of the eventfd */
    uint32_t flags;
    char *submission_map, *completion_map;
    size_t submission_bytes, completion_bytes, request_bytes;
    uint32_t *head, *tail, *state, mask, entries; /* of submissions */
    uint32_t next;       /* the tail that the kernel does not know yet */
    struct request *requests;
    uint32_t *landed_head, *landed_tail, landed_mask;
    struct completion *landed;
};

static void *map(int file, size_t bytes, long what)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, what);

    return memory == MAP_FAILED ? NULL : memory;
}

void tensorjax_ring_close(struct ring *ring)
{
    if (ring->requests)
        munmap(ring->requests, ring->request_bytes);
    if (ring->completion_map && ring->completion_map != ring->submission_map)
        munmap(ring->completion_map, ring->completion_bytes);
    if (ring->submission_map)
        munmap(ring->submission_map, ring->submission_bytes);
    close(ring->file);
    free(ring);
}

/* Maps what the kernel shares; 0, or -errno. */
static int map_all(struct ring *ring, const struct parameters *p)
{
    const struct submission_offsets *s = &p->submission;
    const struct completion_offsets *c = &p->completion;
    const int single = p->features & FEATURE_SINGLE_MAP;

    ring->submission_bytes = s->array + p->submissions * sizeof(uint32_t);
    ring->completion_bytes = c->completions + p->completions * sizeof(struct completion);
    if (single && ring->completion_bytes > ring->submission_bytes)
        ring->submission_bytes = ring->completion_bytes;
    ring->request_bytes = p->submissions * sizeof(struct request);
    if (!(ring->submission_map = map(ring->file, ring->submission_bytes, MAP_SUBMISSIONS)))
        return -errno;
    ring->completion_map = single ? ring->submission_map
                                  : map(ring->file, ring->completion_bytes, MAP_COMPLETIONS);
    if (!ring->completion_map)
        return -errno;
    if (!(ring->requests = map(ring->file, ring->request_bytes, MAP_REQUESTS)))
        return -errno;
    ring->head = (uint32_t *)(ring->submission_map + s->head);
    ring->tail = (uint32_t *)(ring->submission_map + s->tail);
    ring->state = (uint32_t *)(ring->submission_map + s->flags);
    ring->mask = *(uint32_t *)(ring->submission_map + s->mask);
    ring->entries = *(uint32_t *)(ring->submission_map + s->entries);
    ring->landed_head = (uint32_t *)(ring->completion_map + c->head);
    ring->landed_tail = (uint32_t *)(ring->completion_map + c->tail);
    ring->landed_mask = *(uint32_t *)(ring->completion_map + c->mask);
    ring->landed = (struct completion *)(ring->completion_map + c->completions);
    /* Requests are used in the order of their places: the kernel's list of them never changes. */
    for (uint32_t i = 0; i < ring->entries; i++)
        ((uint32_t *)(ring->submission_map + s->array))[i] = i;
    ring->next = *ring->tail;
    return 0;
}

/* A new ring, or NULL and -errno. `event` is an eventfd, or -1 where the ring polls. */
struct ring *tensorjax_ring_open(unsigned entries, int sqpoll, int iopoll, int event, int *error)
{
    struct parameters p;
    struct ring *ring = calloc(1, sizeof *ring);

    *error = -ENOMEM;
    if (!ring)
        return NULL;
    memset(&p, 0, sizeof p);
    p.flags = (sqpoll ? SETUP_SQPOLL : 0) | (iopoll ? SETUP_IOPOLL : 0);
    p.poller_idle_ms = sqpoll ? 50 : 0;
    ring->event = event;
    ring->flags = p.flags;
    ring->file = (int)syscall(CALL_SETUP, entries, &p);
    if (ring->file < 0) {
        *error = -errno;
        free(ring);
        return NULL;
    }
    if ((*error = map_all(ring, &p)) < 0) {
        tensorjax_ring_close(ring);
        return NULL;
    }
    return ring;
}

static int enroll(struct ring *ring, unsigned what, const void *argument, unsigned count)
{
    return syscall(CALL_REGISTER, ring->file, what, argument, count) < 0 ? -errno : 0;
}

/* Pins buffers, each of at most 1 GiB. */
int tensorjax_ring_register(struct ring *ring, unsigned count, void *const *starts,
                            const size_t *sizes)
{
    struct iovec *vectors = calloc(count ? count : 1, sizeof *vectors);
    int error;

    if (!vectors)
        return -ENOMEM;
    for (unsigned i = 0; i < count; i++)
        vectors[i] = (struct iovec){starts[i], sizes[i]};
    error = enroll(ring, REGISTER_BUFFERS, vectors, count);
    free(vectors);
    return error;
}

/* Lets go of the registered buffers, of which no transfer is under way. */
int tensorjax_ring_unregister(struct ring *ring)
{
    return enroll(ring, UNREGISTER_BUFFERS, NULL, 0);
}

/* Tells the kernel what is queued, and waits for `wait` completions. */
static int submit(struct ring *ring, unsigned wait)
{
    unsigned flags = wait ? ENTER_GET_EVENTS : 0, queued = 0, state;

    __atomic_store_n(ring->tail, ring->next, __ATOMIC_RELEASE);
    if (ring->flags & SETUP_SQPOLL) {
        /* The new tail must be seen before the poller goes to sleep, or its sleep be seen here. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (__atomic_load_n(ring->state, __ATOMIC_RELAXED) & POLLER_SLEEPS)
            flags |= ENTER_WAKE_POLLER;
    }
    state = __atomic_load_n(ring->state, __ATOMIC_RELAXED);
    if (ring->flags & SETUP_IOPOLL || state & (COMPLETIONS_OVERFLOW | TASKS_WAIT))
        flags |= ENTER_GET_EVENTS;
    queued = ring->next - __atomic_load_n(ring->head, __ATOMIC_ACQUIRE);
    if (!flags && (!queued || ring->flags & SETUP_SQPOLL))
        return 0;
    return syscall(CALL_ENTER, ring->file, queued, wait, flags, NULL, 8) < 0 ? -errno : 0;
}

/* A place for a request, all zeros, or NULL where all are queued. */
static struct request *place(struct ring *ring)
{
    struct request *r;

    if (ring->next - __atomic_load_n(ring->head, __ATOMIC_ACQUIRE) >= ring->entries)
        return NULL;
    r = &ring->requests[ring->next++ & ring->mask];
    memset(r, 0, sizeof *r);
    return r;
}

/* Queues one transfer; `buffer` is the number of the registered one with the address, or -1. */
int tensorjax_ring_prepare(struct ring *ring, uint64_t token, int write, int file,
                           uint64_t address, uint32_t size, uint64_t offset, int buffer)
{
    struct request *r = place(ring);

    if (!r) {
        const int error = submit(ring, 0);
        if (error < 0)
            return error;
        if (!(r = place(ring)))
            return -EBUSY;
    }
    if (buffer < 0)
        r->operation = write ? WRITE : READ;
    else
        r->operation = write ? WRITE_FIXED : READ_FIXED;
    r->buffer = buffer < 0 ? 0 : (uint16_t)buffer;
    r->file = file;
    r->address = address;
    r->size = size;
    r->offset = offset;
    r->token = token;
    return 0;
}

/* Submits what is queued, waits for a completion or the eventfd if `block`, and returns how many
 * completions (tokens; bytes moved or -errno), at most `room`, it found. */
int tensorjax_ring_wait(struct ring *ring, int block, struct completion *found, int room)
{
    struct request *r;
    uint32_t at, end;
    int count = 0, error;

    if (ring->event >= 0 && !ring->watching && (r = place(ring))) {
        r->operation = READ;
        r->file = ring->event;
        r->address = (uintptr_t)&ring->events;
        r->size = sizeof ring->events;
        r->token = WAKE;
        ring->watching = 1;
    }
    error = submit(ring, block ? 1 : 0);
    if (error < 0 && error != -EAGAIN && error != -EBUSY)
        return error;
    at = *ring->landed_head;
    end = __atomic_load_n(ring->landed_tail, __ATOMIC_ACQUIRE);
    for (; at != end && count < room; at++) {
        const struct completion *c = &ring->landed[at & ring->landed_mask];
        if (c->token == WAKE)
            ring->watching = 0;
        else
            found[count++] = *c;
    }
    __atomic_store_n(ring->landed_head, at, __ATOMIC_RELEASE);
    return count;
}

/* Digest of the sources that this library is built from, as the build gives it. */
#ifndef TENSORJAX_SOURCES
#define TENSORJAX_SOURCES ""
#endif
const char *tensorjax_sources(void)
{
    return TENSORJAX_SOURCES;
}
