# cython: language_level=3
"""The queue of the log's thread, which makes prepared writes while the thread waits for a job. Linux only.

A thread that waits in `get` is without the interpreter's lock. If the event loop has a write ready, that thread makes it
and rings the bell, an eventfd, and waits on: neither the write nor the wake-up of the loop needs the interpreter.

A write is bytes, which stay as they are until `result`, for one place of one file. Nothing is decided about it here: it
is one system call, RWF_DSYNC, and what it returned is reported. It is not begun where the link counts are not those of
the plain case: another name shares the bytes of the file, a removed file loses them, and without LOCK another process
may write.

The C part stands alone: tests compile it with system calls that fail on request.
"""

from collections import deque
from queue import Empty

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_SetFromErrno

cdef extern from *:
    """
    /* begin of the C part */
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <errno.h>
    #include <pthread.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/eventfd.h>
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <time.h>
    #include <unistd.h>

    #define JOBS_RWF_DSYNC 2
    #define JOBS_AT_EMPTY_PATH 0x1000
    #define JOBS_STATX_NLINK 4

    typedef struct {
        pthread_mutex_t mutex;      /* guards jobs, waits, writes; the rest belongs to the side whose turn it is */
        pthread_cond_t wake;
        int jobs, waits, writes;    /* how many jobs were put; a thread waits for one; there is a write to make */
        pid_t pid;                  /* of the process with the thread; a forked child has none */
        int bell;
        int file, lock;             /* descriptors of the write */
        const void *bytes;
        size_t length;
        int64_t offset;
        int is_begun;               /* its result: it was made, and what that returned, bytes or a negative errno */
        int64_t taken, nanoseconds;
    } job_queue;

    static int64_t jobs_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    }

    /* The number of names of an open file; -1 if the system does not report it. No libc wrapper: older musl has none. */
    static int64_t jobs_links(int fd) {
        uint32_t found[64];
        if (syscall(SYS_statx, fd, "", JOBS_AT_EMPTY_PATH, JOBS_STATX_NLINK, found) != 0) return -1;
        return found[4];
    }

    static void jobs_make_write(job_queue *self) {
        struct iovec all = { (void *)self->bytes, self->length };
        int64_t begun = jobs_now();
        self->taken = 0;
        self->is_begun = jobs_links(self->file) == 1 && jobs_links(self->lock) >= 1;
        if (self->is_begun) {
            do {
                self->taken = syscall(SYS_pwritev2, self->file, &all, 1L, (unsigned long)self->offset,
                                      (unsigned long)((uint64_t)self->offset >> 32), (long)JOBS_RWF_DSYNC);
                if (self->taken < 0) self->taken = -errno;
            } while (self->taken == -EINTR);
        }
        self->nanoseconds = jobs_now() - begun;
    }

    static void jobs_ring(job_queue *self) {
        uint64_t one = 1;
        ssize_t written = write(self->bell, &one, sizeof one);
        (void)written;  /* only a full counter refuses it: then the bell has been ringing for long */
    }

    /* Wait for a job, and make the writes that come meanwhile. */
    static void jobs_wait(job_queue *self) {
        pthread_mutex_lock(&self->mutex);
        self->waits = 1;
        while (self->writes || !self->jobs) {
            if (!self->writes) { pthread_cond_wait(&self->wake, &self->mutex); continue; }
            pthread_mutex_unlock(&self->mutex);
            jobs_make_write(self);
            pthread_mutex_lock(&self->mutex);
            self->writes = 0;
            /* Not inside the mutex: who wakes up takes it first. */
            pthread_mutex_unlock(&self->mutex);
            jobs_ring(self);
            pthread_mutex_lock(&self->mutex);
        }
        self->waits = 0;
        self->jobs--;
        pthread_mutex_unlock(&self->mutex);
    }

    static void jobs_put(job_queue *self) {
        if (self->pid != getpid()) return;
        pthread_mutex_lock(&self->mutex);
        self->jobs++;
        pthread_mutex_unlock(&self->mutex);
        pthread_cond_signal(&self->wake);
    }

    /* Have the waiting thread make a write, or with 0 bytes none. Returns 0 if it has a job to come, or a write. */
    static int jobs_write(job_queue *self, int file, int lock, const void *bytes, size_t length, int64_t offset) {
        int idle;
        if (self->pid != getpid()) return 0;
        pthread_mutex_lock(&self->mutex);
        idle = self->waits && !self->jobs && !self->writes;
        if (idle && length) {
            self->file = file;
            self->lock = lock;
            self->bytes = bytes;
            self->length = length;
            self->offset = offset;
            self->writes = 1;
        }
        pthread_mutex_unlock(&self->mutex);
        if (idle && length) pthread_cond_signal(&self->wake);
        return idle;
    }

    /* Returns NULL with errno. */
    static job_queue *jobs_new(void) {
        job_queue *self = calloc(1, sizeof *self);
        if (!self) return NULL;
        self->pid = getpid();
        self->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (self->bell < 0) { int error = errno; free(self); errno = error; return NULL; }
        pthread_mutex_init(&self->mutex, NULL);
        pthread_cond_init(&self->wake, NULL);
        return self;
    }

    static void jobs_close(job_queue *self) {
        if (self->bell >= 0) close(self->bell);
        self->bell = -1;
    }

    /* The mutex is left as it is: in a forked child it may be in any state. */
    static void jobs_free(job_queue *self) {
        jobs_close(self);
        free(self);
    }

    /* Returns 1 if the bell has rung since the last call. */
    static int jobs_heard(job_queue *self) {
        uint64_t rings;
        return self->pid == getpid() && read(self->bell, &rings, sizeof rings) == (ssize_t)sizeof rings;
    }
    /* end of the C part */
    """
    ctypedef struct job_queue:
        int bell, is_begun
        long long taken, nanoseconds
    job_queue *jobs_new()
    void jobs_free(job_queue *self)
    void jobs_close(job_queue *self)
    void jobs_wait(job_queue *self) nogil
    void jobs_put(job_queue *self)
    bint jobs_write(job_queue *self, int file, int lock, const void *bytes, size_t length, long long offset)
    void jobs_ring(job_queue *self)
    bint jobs_heard(job_queue *self)

cdef extern from *:
    """
    #ifndef MRECORDLOG_SOURCE
    #define MRECORDLOG_SOURCE ""
    #endif
    """
    const char* MRECORDLOG_SOURCE

SOURCE = MRECORDLOG_SOURCE.decode()


cdef class Jobs:
    """See `engine.commit.thread.WritingJobs`, whose methods these are. Raises OSError without a descriptor."""

    cdef job_queue *_queue
    cdef object _jobs, _bytes
    cdef object __weakref__

    def __cinit__(self):
        self._jobs = deque()
        self._queue = jobs_new()
        if self._queue == NULL:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self._queue != NULL:
            jobs_free(self._queue)

    def put(self, job):
        self._jobs.append(job)
        jobs_put(self._queue)

    def get(self):
        with nogil:
            jobs_wait(self._queue)
        return self._jobs.popleft()

    def get_nowait(self):
        if not self._jobs:
            raise Empty
        return self._jobs.popleft()

    def is_idle(self):
        return jobs_write(self._queue, -1, -1, NULL, 0, 0)

    def write(self, int file, int lock, buffer, long long offset):
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        starts = jobs_write(self._queue, file, lock, view.buf, view.len, offset)
        if starts:
            self._bytes = buffer  # until the next write begins
        PyBuffer_Release(&view)
        return starts

    def result(self):
        found = bool(self._queue.is_begun), self._queue.taken, self._queue.nanoseconds * 1e-9
        self._queue.is_begun = 0  # a write that was never taken must not have the result of the one before
        return found

    def fileno(self):
        return self._queue.bell

    def ring(self):
        jobs_ring(self._queue)

    def has_rung(self):
        return jobs_heard(self._queue)

    def close(self):
        jobs_close(self._queue)
