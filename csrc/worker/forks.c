// The module looseleaf.worker._forks. Its contract stands in looseleaf/worker/_forks.pyi.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

static PyObject *fork_orphan(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    // Written by the process in between, which shares this memory.
    volatile pid_t child = 0;
    volatile int error_number = EIO;
    if (PySys_Audit("os.fork", NULL) < 0) {
        return NULL;
    }
    PyOS_BeforeFork();
    // Copies nothing: the process in between runs on this stack while this one waits for its end. All that it does is
    // one fork, so the C library's and the packages' own fork handlers run as for a fork of this process.
    const pid_t middle = vfork();
    if (middle == 0) {
        // Whoever ends this process's group does not mean a child that has no session of its own yet.
        setpgid(0, 0);
        const pid_t made = fork();
        if (made == 0) {
            // In a copy of the memory and this stack, which are its own: it goes on as the child of any fork.
            PyOS_AfterFork_Child();
            return PyLong_FromLong(0);
        }
        if (made < 0) {
            error_number = errno;
        }
        child = made;
        _exit(0);
    }
    const int refused = middle < 0 ? errno : 0;
    PyOS_AfterFork_Parent();
    if (middle > 0) {
        while (waitpid(middle, NULL, 0) < 0 && errno == EINTR) {
            continue;
        }
        if (child > 0) {
            return PyLong_FromLong(child);
        }
    }
    errno = refused ? refused : error_number;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyMethodDef methods[] = {
    {"fork_orphan", fork_orphan, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_forks",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__forks(void) {
    return PyModule_Create(&module);
}
