/* Copies for Python that leave the caches alone: for what a disk reads next, and nobody here.
 *
 * By Python's stable ABI, which has buffers since 3.11: built once, it serves every later version.
 * Not through ctypes, which needs as long to find an array as this to copy 16 KiB of it. */

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
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

/* Copies `count` views to where the target begins. */
static void join(const Py_buffer *views, Py_ssize_t count, char *to)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        copy(views[i].buf, to, (size_t)views[i].len);
        to += views[i].len;
    }
    fence();
}

static PyObject *gather(PyObject *module, PyObject *arguments)
{
    PyObject *given, *sources, *result = NULL;
    Py_buffer target, *views;
    Py_ssize_t taken = 0, left, count;

    (void)module;
    if (!PyArg_ParseTuple(arguments, "Ow*", &given, &target))
        return NULL;
    sources = PySequence_Tuple(given);
    if (sources == NULL) {
        PyBuffer_Release(&target);
        return NULL;
    }
    count = PyTuple_Size(sources);
    left = target.len;
    views = PyMem_Calloc((size_t)count + 1, sizeof *views);
    if (views == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    while (taken < count && left >= 0) {
        if (PyObject_GetBuffer(PyTuple_GetItem(sources, taken), &views[taken], PyBUF_SIMPLE))
            goto end;
        left -= views[taken++].len;
    }
    if (left != 0) {
        PyErr_Format(PyExc_ValueError, "target: expected as many bytes as the sources have, got "
                     "%zd, %zd too %s", target.len, left < 0 ? -left : left,
                     left < 0 ? "few" : "many");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    join(views, count, target.buf);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
end:
    while (taken > 0)
        PyBuffer_Release(&views[--taken]);
    PyMem_Free(views);
    Py_DECREF(sources);
    PyBuffer_Release(&target);
    return result;
}

static PyMethodDef methods[] = {
    {"gather", gather, METH_VARARGS, "Copies buffers, one behind the other, to fill a buffer."},
    {NULL, NULL, 0, NULL},
};

/* Digest of the sources that this module is built from, as the build gives it. */
#ifndef TENSORJAX_SOURCES
#define TENSORJAX_SOURCES ""
#endif
static int add_sources(PyObject *self)
{
    return PyModule_AddStringConstant(self, "sources", TENSORJAX_SOURCES);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_sources},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_copies_c",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__copies_c(void)
{
    return PyModuleDef_Init(&module);
}
