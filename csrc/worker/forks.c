// The module looseleaf.worker._forks. Its contract stands in looseleaf/worker/_forks.pyi.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// What both processes of a fork write: memory that they share even where vfork is an ordinary fork, as under valgrind.
typedef struct {
    pid_t child;
    int error_number;
    // Taken by the child as it begins, or by its parent that gives it up.
    int claimed;
} Report;

#if defined(__x86_64__) || defined(__aarch64__)
#if defined(__x86_64__)
#define RSEQ_CALL 334
#define RSEQ_SIGNATURE 0x53053053u
#else
#define RSEQ_CALL 293
#define RSEQ_SIGNATURE 0xd428bc00u
#endif
#define RSEQ_BYTES_MIN 32u
#define RSEQ_CPU_ID 4
#define RSEQ_FAILED (-2)

// Of glibc since 2.35; elsewhere both addresses are null.
extern const unsigned int __rseq_size __attribute__((weak));
extern const ptrdiff_t __rseq_offset __attribute__((weak));

static char *thread_pointer(void) {
#if defined(__x86_64__)
    char *pointer;
    __asm__("movq %%fs:0, %0" : "=r"(pointer));
    return pointer;
#else
    return __builtin_thread_pointer();
#endif
}

// The system gives a vfork's child, and what that one forks, no restartable sequences, while the C library goes on to
// believe in its own: without this `sched_getcpu` would answer the zygote's CPU for ever, and allocators that keep
// memory by CPU would take no notice of a change of it.
static void register_restartable_sequences(void) {
    if (&__rseq_size == NULL || &__rseq_offset == NULL || __rseq_size == 0) {
        return;
    }
    char *area = thread_pointer() + __rseq_offset;
    // As the C library registered it; since glibc 2.40 the size that it tells is that of the fields in use.
    const unsigned int bytes = (__rseq_size + RSEQ_BYTES_MIN - 1) / RSEQ_BYTES_MIN * RSEQ_BYTES_MIN;
    // EBUSY: it has been kept, vfork is an ordinary fork here.
    if (syscall(RSEQ_CALL, area, bytes, 0, RSEQ_SIGNATURE) != 0 && errno != EBUSY) {
        *(volatile int32_t *)(area + RSEQ_CPU_ID) = RSEQ_FAILED;
    }
}
#else
static void register_restartable_sequences(void) {}
#endif

static PyObject *oserror(int number, const char *text) {
    PyObject *arguments = Py_BuildValue("(is)", number, text);
    if (arguments != NULL) {
        PyErr_SetObject(PyExc_OSError, arguments);
        Py_DECREF(arguments);
    }
    return NULL;
}

static PyObject *fork_orphan(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    if (PySys_Audit("os.fork", NULL) < 0) {
        return NULL;
    }
    volatile Report *report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED) {
        return PyErr_SetFromErrno(PyExc_OSError);
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
            register_restartable_sequences();
            report->child = getpid();
            if (__atomic_exchange_n(&report->claimed, 1, __ATOMIC_SEQ_CST) != 0) {
                _exit(0);
            }
            munmap((void *)report, sizeof *report);
            PyOS_AfterFork_Child();
            return PyLong_FromLong(0);
        }
        if (made < 0) {
            report->error_number = errno;
        } else {
            report->child = made;
        }
        _exit(0);
    }
    const int refused = middle < 0 ? errno : 0;
    PyOS_AfterFork_Parent();
    int status = 0;
    while (middle > 0 && waitpid(middle, &status, 0) < 0 && errno == EINTR) {
        continue;
    }
    // One that was killed may have forked: then the child has begun, or it never will.
    const int error_number = refused ? refused : report->error_number;
    const int unclear = error_number == 0 && (status != 0 || report->child == 0);
    const int lost = unclear && __atomic_exchange_n(&report->claimed, 1, __ATOMIC_SEQ_CST) == 0;
    const pid_t child = report->child;
    munmap((void *)report, sizeof *report);
    if (lost) {
        return oserror(EIO, "the process in between was ended before its fork was done");
    }
    if (error_number != 0) {
        errno = error_number;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromLong(child);
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
