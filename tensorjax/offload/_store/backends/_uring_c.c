/* A ring of io_uring for Python: transfers at offsets of files, from and to memory that stays put.
 *
 * Source: io_uring(7), liburing. One thread owns a ring; `wake` may be called from any. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#define WAKE UINT64_MAX

typedef struct {
    PyObject_HEAD
    struct io_uring ring;
    int open;
    int event;          /* -1 where the ring polls: it cannot watch an eventfd */
    int watching;
    uint64_t events;    /* where the kernel puts what it reads of the eventfd */
    Py_buffer *views;   /* registered */
    Py_ssize_t count;
} Ring;

static PyObject *fail(int error)
{
    errno = error < 0 ? -error : error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static void drop_views(Ring *self)
{
    for (Py_ssize_t i = 0; i < self->count; i++)
        PyBuffer_Release(&self->views[i]);
    PyMem_Free(self->views);
    self->views = NULL;
    self->count = 0;
}

static int Ring_init(Ring *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"entries", "sqpoll", "iopoll", NULL};
    unsigned entries;
    int sqpoll = 0, iopoll = 0, error;
    struct io_uring_params params;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "I|$pp", names, &entries, &sqpoll, &iopoll))
        return -1;
    if (self->open) {
        PyErr_SetString(PyExc_RuntimeError, "the ring is set up already");
        return -1;
    }
    memset(&params, 0, sizeof params);
    if (sqpoll) {
        params.flags |= IORING_SETUP_SQPOLL;
        params.sq_thread_idle = 50;
    }
    if (iopoll)
        params.flags |= IORING_SETUP_IOPOLL;
    self->event = -1;
    if ((error = io_uring_queue_init_params(entries, &self->ring, &params)) < 0) {
        fail(error);
        return -1;
    }
    self->open = 1;
    if (!iopoll && (self->event = eventfd(0, EFD_CLOEXEC)) < 0) {
        fail(errno);
        return -1;
    }
    return 0;
}

static PyObject *Ring_close(Ring *self, PyObject *unused)
{
    (void)unused;
    if (self->open) {
        self->open = 0;
        Py_BEGIN_ALLOW_THREADS
        io_uring_queue_exit(&self->ring);
        Py_END_ALLOW_THREADS
        if (self->event >= 0)
            close(self->event);
        self->event = -1;
        drop_views(self);
    }
    Py_RETURN_NONE;
}

static void Ring_dealloc(Ring *self)
{
    Py_XDECREF(Ring_close(self, NULL));
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int check_open(Ring *self)
{
    if (self->open)
        return 1;
    PyErr_SetString(PyExc_ValueError, "the ring is closed");
    return 0;
}

static PyObject *Ring_register(Ring *self, PyObject *buffers)
{
    PyObject *list;
    struct iovec *vectors;
    Py_ssize_t count;
    int error;

    if (!check_open(self))
        return NULL;
    if (self->count) {
        PyErr_SetString(PyExc_RuntimeError, "buffers are registered already");
        return NULL;
    }
    if (!(list = PySequence_Fast(buffers, "expected a sequence of buffers")))
        return NULL;
    count = PySequence_Fast_GET_SIZE(list);
    self->views = PyMem_Calloc(count, sizeof *self->views);
    vectors = PyMem_Calloc(count, sizeof *vectors);
    if (!self->views || !vectors) {
        PyMem_Free(vectors);
        Py_DECREF(list);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(list, i), &self->views[i],
                               PyBUF_WRITABLE) < 0) {
            drop_views(self);
            PyMem_Free(vectors);
            Py_DECREF(list);
            return NULL;
        }
        self->count = i + 1;
        vectors[i].iov_base = self->views[i].buf;
        vectors[i].iov_len = self->views[i].len;
    }
    Py_DECREF(list);
    Py_BEGIN_ALLOW_THREADS
    error = io_uring_register_buffers(&self->ring, vectors, count);
    Py_END_ALLOW_THREADS
    PyMem_Free(vectors);
    if (error < 0) {
        drop_views(self);
        return fail(error);
    }
    Py_RETURN_NONE;
}

static PyObject *Ring_unregister(Ring *self, PyObject *unused)
{
    int error = 0;

    (void)unused;
    if (!check_open(self))
        return NULL;
    if (self->count) {
        Py_BEGIN_ALLOW_THREADS
        error = io_uring_unregister_buffers(&self->ring);
        Py_END_ALLOW_THREADS
        if (error < 0)
            return fail(error);
        drop_views(self);
    }
    Py_RETURN_NONE;
}

static PyObject *Ring_prepare(Ring *self, PyObject *args)
{
    unsigned long long token, address, offset;
    int write, file, buffer;
    unsigned size;
    struct io_uring_sqe *sqe;

    if (!PyArg_ParseTuple(args, "KpiKIKi", &token, &write, &file, &address, &size, &offset,
                          &buffer) || !check_open(self))
        return NULL;
    if (buffer >= self->count) {
        PyErr_SetString(PyExc_IndexError, "no such registered buffer");
        return NULL;
    }
    if (!(sqe = io_uring_get_sqe(&self->ring))) {
        int error = io_uring_submit(&self->ring);
        if (error < 0)
            return fail(error);
        if (!(sqe = io_uring_get_sqe(&self->ring)))
            return fail(EBUSY);
    }
    void *memory = (void *)(uintptr_t)address;
    if (write && buffer >= 0)
        io_uring_prep_write_fixed(sqe, file, memory, size, offset, buffer);
    else if (write)
        io_uring_prep_write(sqe, file, memory, size, offset);
    else if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, file, memory, size, offset, buffer);
    else
        io_uring_prep_read(sqe, file, memory, size, offset);
    io_uring_sqe_set_data64(sqe, token);
    Py_RETURN_NONE;
}

static PyObject *Ring_wait(Ring *self, PyObject *args)
{
    struct io_uring_cqe *cqe;
    struct io_uring_sqe *sqe;
    unsigned head, seen = 0;
    int wait, error;
    PyObject *found;

    if (!PyArg_ParseTuple(args, "p", &wait) || !check_open(self))
        return NULL;
    if (self->event >= 0 && !self->watching && (sqe = io_uring_get_sqe(&self->ring))) {
        io_uring_prep_read(sqe, self->event, &self->events, sizeof self->events, 0);
        io_uring_sqe_set_data64(sqe, WAKE);
        self->watching = 1;
    }
    do {
        Py_BEGIN_ALLOW_THREADS
        error = io_uring_submit_and_wait(&self->ring, wait ? 1 : 0);
        Py_END_ALLOW_THREADS
    } while (error == -EINTR && !PyErr_CheckSignals());
    if (PyErr_Occurred())
        return NULL;
    if (error < 0 && error != -EAGAIN && error != -EBUSY)
        return fail(error);
    if (!(found = PyList_New(0)))
        return NULL;
    io_uring_for_each_cqe(&self->ring, head, cqe) {
        seen++;
        if (cqe->user_data == WAKE) {
            self->watching = 0;
            continue;
        }
        PyObject *pair = Py_BuildValue("Ki", (unsigned long long)cqe->user_data, cqe->res);
        if (!pair || PyList_Append(found, pair) < 0) {
            Py_XDECREF(pair);
            Py_DECREF(found);
            return NULL;
        }
        Py_DECREF(pair);
    }
    io_uring_cq_advance(&self->ring, seen);
    return found;
}

static PyObject *Ring_wake(Ring *self, PyObject *unused)
{
    uint64_t one = 1;
    (void)unused;
    if (self->event >= 0 && write(self->event, &one, sizeof one) < 0 && errno != EAGAIN)
        return fail(errno);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"register", (PyCFunction)Ring_register, METH_O,
     "register(buffers): pins writable buffers, each of at most 1 GiB."},
    {"unregister", (PyCFunction)Ring_unregister, METH_NOARGS,
     "unregister(): lets go of the registered buffers, of which no transfer is under way."},
    {"prepare", (PyCFunction)Ring_prepare, METH_VARARGS,
     "prepare(token, write, file, address, size, offset, buffer): queues one transfer; buffer is "
     "the number of the registered buffer that holds the address, or -1."},
    {"wait", (PyCFunction)Ring_wait, METH_VARARGS,
     "wait(block): submits what is queued, waits for a completion or `wake` if block, and returns "
     "[(token, bytes moved or -errno)]."},
    {"wake", (PyCFunction)Ring_wake, METH_NOARGS, "wake(): ends a wait; from any thread."},
    {"close", (PyCFunction)Ring_close, METH_NOARGS, "close(): ends the ring."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject RingType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tensorjax.offload._store.backends._uring_c.Ring",
    .tp_doc = "Ring(entries, *, sqpoll=False, iopoll=False)",
    .tp_basicsize = sizeof(Ring),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Ring_init,
    .tp_dealloc = (destructor)Ring_dealloc,
    .tp_methods = methods,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_uring_c",
    .m_doc = "io_uring through system liburing.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__uring_c(void)
{
    PyObject *made;

    if (PyType_Ready(&RingType) < 0 || !(made = PyModule_Create(&module)))
        return NULL;
    Py_INCREF(&RingType);
    if (PyModule_AddObject(made, "Ring", (PyObject *)&RingType) < 0) {
        Py_DECREF(&RingType);
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
