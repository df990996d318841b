# cython: language_level=3
"""The disk thread: makes one small batch durable at a time, without the interpreter's lock. Linux only.

Only the staged bytes and two descriptors of its own pass to the thread: duplicates of the segment's and of LOCK's.
`start` copies the bytes and wakes the thread. The thread looks at both link counts, writes past the page cache with
RWF_DSYNC, and rings the bell, an eventfd. Whatever is not the plain case is not decided here: the write is refused
before its first byte, and the log's own thread does it.

The C part stands alone: tests compile it with system calls that fail on request.
"""

from cpython.exc cimport PyErr_SetFromErrno

cdef extern from *:
    """
    /* begin of the C part */
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <errno.h>
    #include <fcntl.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/eventfd.h>
    #include <sys/mman.h>
    #include <sys/prctl.h>
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <time.h>
    #include <unistd.h>

    #define DISK_BLOCK 4096
    #define DISK_STAGED (64 * 1024)  /* a batch ends in the block of 32 KiB that it begins in */
    #define DISK_STACK (256 * 1024)
    #define DISK_RWF_DSYNC 2
    #define DISK_AT_EMPTY_PATH 0x1000
    #define DISK_STATX_NLINK 4

    enum { DISK_IDLE, DISK_STARTED, DISK_DONE };

    typedef struct {
        pthread_mutex_t mutex;        /* guards state, ending, owners; the rest belongs to the side whose turn it is */
        pthread_cond_t wake, done;
        pthread_t thread;
        pid_t pid;                    /* of the process with the thread; a forked child has none */
        int state, ending, owners;    /* owners: the Python object and the thread; the last one frees */
        int bell, segment, lock;      /* descriptors; -1 without one */
        uint8_t *staged;
        size_t length;
        int64_t offset;
        int is_refused, error;        /* of the last write: not begun; errno of a write that failed */
        int64_t nanoseconds;          /* inside system calls */
    } disk_thread;

    static int64_t disk_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    }

    /* The number of names of an open file; -1 if the system does not report it. No libc wrapper: older musl has none. */
    static int64_t disk_links(int fd) {
        uint32_t found[64];
        if (syscall(SYS_statx, fd, "", DISK_AT_EMPTY_PATH, DISK_STATX_NLINK, found) != 0) return -1;
        return found[4];
    }

    static void disk_write(disk_thread *self) {
        int64_t begun = disk_now();
        size_t at = 0;
        int was_short = 0;
        self->error = 0;
        /* Another name shares the bytes; a removed segment loses them; without LOCK another process may write. A file
           system that does not count names reports 0 for each: the log's thread knows what to think of that. */
        self->is_refused = disk_links(self->segment) != 1 || disk_links(self->lock) < 1;
        while (!self->is_refused && at < self->length) {
            struct iovec rest = { self->staged + at, self->length - at };
            int64_t offset = self->offset + (int64_t)at;
            ssize_t taken = syscall(SYS_pwritev2, self->segment, &rest, 1L, (unsigned long)offset,
                                    (unsigned long)((uint64_t)offset >> 32), (long)DISK_RWF_DSYNC);
            if (taken < 0 && errno == EINTR) continue;
            if (taken < 0) { self->error = errno; break; }
            int is_short = taken < DISK_BLOCK;
            if (taken == 0 || (is_short && was_short)) { self->error = -1; break; }  /* it accepts no whole block */
            at += (size_t)(taken - taken % DISK_BLOCK);
            was_short = is_short;
        }
        self->nanoseconds = disk_now() - begun;
    }

    static void disk_ring(disk_thread *self) {
        uint64_t one = 1;
        ssize_t written = write(self->bell, &one, sizeof one);
        (void)written;  /* only a full counter refuses it: then the bell has been ringing for long */
    }

    static void disk_close(int *fd) {
        if (*fd >= 0) close(*fd);
        *fd = -1;
    }

    static void disk_free(disk_thread *self) {
        disk_close(&self->segment);
        disk_close(&self->lock);
        disk_close(&self->bell);
        munmap(self->staged, DISK_STAGED);
        free(self);
    }

    /* Give up one of two owners. The mutex is held, and let go. */
    static void disk_disown(disk_thread *self) {
        int left = --self->owners;
        pthread_mutex_unlock(&self->mutex);
        if (left) return;
        pthread_cond_destroy(&self->wake);
        pthread_cond_destroy(&self->done);
        pthread_mutex_destroy(&self->mutex);
        disk_free(self);
    }

    static void *disk_run(void *argument) {
        disk_thread *self = argument;
        prctl(PR_SET_NAME, "mrecordlog disk");
        pthread_mutex_lock(&self->mutex);
        for (;;) {
            while (self->state != DISK_STARTED && !self->ending) pthread_cond_wait(&self->wake, &self->mutex);
            if (self->state != DISK_STARTED) break;  /* at the end too: what was started is written */
            pthread_mutex_unlock(&self->mutex);
            disk_write(self);
            pthread_mutex_lock(&self->mutex);
            self->state = DISK_DONE;
            /* Not inside the mutex: who wakes up takes it first. */
            pthread_mutex_unlock(&self->mutex);
            disk_ring(self);
            pthread_cond_broadcast(&self->done);
            pthread_mutex_lock(&self->mutex);
        }
        disk_close(&self->segment);
        disk_close(&self->lock);
        disk_ring(self);  /* the loop forgets the bell */
        disk_disown(self);
        return NULL;
    }

    /* Returns NULL with errno. */
    static disk_thread *disk_new(void) {
        disk_thread *self = calloc(1, sizeof *self);
        pthread_attr_t attributes;
        sigset_t all, before;
        int error;
        if (!self) return NULL;
        self->pid = getpid();
        self->owners = 2;
        self->segment = self->lock = -1;
        /* Shared: in a private mapping, a fork during a write would give the disk and this process different pages. */
        self->staged = mmap(NULL, DISK_STAGED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (self->staged == MAP_FAILED) { free(self); return NULL; }
        self->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (self->bell < 0) { error = errno; disk_free(self); errno = error; return NULL; }
        pthread_mutex_init(&self->mutex, NULL);
        pthread_cond_init(&self->wake, NULL);
        pthread_cond_init(&self->done, NULL);
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, DISK_STACK);
        sigfillset(&all);  /* signals are for the threads of the interpreter */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&self->thread, &attributes, disk_run, self);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
        if (error) { disk_free(self); errno = error; return NULL; }
        return self;
    }

    /* Write to duplicates of these descriptors from now on; without them for negative ones. The thread is idle. */
    static int disk_use(disk_thread *self, int segment, int lock) {
        int own_segment = -1, own_lock = -1;
        if (segment >= 0) {
            own_segment = fcntl(segment, F_DUPFD_CLOEXEC, 3);
            own_lock = own_segment < 0 ? -1 : fcntl(lock, F_DUPFD_CLOEXEC, 3);
            if (own_lock < 0) { int error = errno; disk_close(&own_segment); errno = error; }
        }
        disk_close(&self->segment);
        disk_close(&self->lock);
        self->segment = own_segment;
        self->lock = own_lock;
        return segment < 0 || own_segment >= 0 ? 0 : -1;
    }

    /* Begin to write at *offset*, a whole block, what was *kept* of the block and what follows. False: not now. */
    static int disk_start(disk_thread *self, const void *kept, size_t kept_length, const void *bytes, size_t length,
                          int64_t offset) {
        size_t size = kept_length + length, whole = (size + DISK_BLOCK - 1) / DISK_BLOCK * DISK_BLOCK;
        int starts;
        if (self->pid != getpid() || whole > DISK_STAGED || offset % DISK_BLOCK) return 0;
        pthread_mutex_lock(&self->mutex);
        starts = self->state == DISK_IDLE && !self->ending && self->segment >= 0;
        if (starts) {
            memcpy(self->staged, kept, kept_length);
            memcpy(self->staged + kept_length, bytes, length);
            memset(self->staged + size, 0, whole - size);
            self->length = whole;
            self->offset = offset;
            self->state = DISK_STARTED;
        }
        pthread_mutex_unlock(&self->mutex);
        if (starts) pthread_cond_signal(&self->wake);
        return starts;
    }

    /* Wait for the write under way, if there is one. Returns 1 if there is a result to take. */
    static int disk_wait(disk_thread *self) {
        int is_done;
        if (self->pid != getpid()) return 0;
        pthread_mutex_lock(&self->mutex);
        while (self->state == DISK_STARTED) pthread_cond_wait(&self->done, &self->mutex);
        is_done = self->state == DISK_DONE;
        self->state = DISK_IDLE;
        pthread_mutex_unlock(&self->mutex);
        return is_done;
    }

    /* Write what was started, close the duplicates, and end the thread. With *wait*, return after that. */
    static void disk_end(disk_thread *self, int wait) {
        int was_ending;
        if (self->pid != getpid()) return;
        pthread_mutex_lock(&self->mutex);
        was_ending = self->ending;
        self->ending = 1;
        pthread_mutex_unlock(&self->mutex);
        if (was_ending) return;
        pthread_cond_signal(&self->wake);
        if (wait) pthread_join(self->thread, NULL);
        else pthread_detach(self->thread);
    }

    /* In a forked child: close its copies. Lock and thread are the parent's, and may be in any state. */
    static void disk_forget(disk_thread *self) {
        if (self->pid == getpid()) return;
        disk_close(&self->segment);
        disk_close(&self->lock);
        disk_close(&self->bell);
    }

    /* The Python object ends. It does not wait: an exit must not hang where the disk does. */
    static void disk_drop(disk_thread *self) {
        if (self->pid != getpid()) { disk_free(self); return; }
        disk_end(self, 0);
        pthread_mutex_lock(&self->mutex);
        disk_disown(self);
    }

    /* Returns 1 if the bell has rung since the last call. */
    static int disk_heard(disk_thread *self) {
        uint64_t rings;
        return self->pid == getpid() && read(self->bell, &rings, sizeof rings) == (ssize_t)sizeof rings;
    }
    /* end of the C part */
    """
    ctypedef struct disk_thread:
        int bell, ending, is_refused, error
        long long nanoseconds
    disk_thread *disk_new()
    int disk_use(disk_thread *self, int segment, int lock)
    int disk_start(disk_thread *self, const void *kept, size_t kept_length, const void *bytes, size_t length,
                   long long offset)
    int disk_wait(disk_thread *self) nogil
    void disk_end(disk_thread *self, int wait) nogil
    void disk_forget(disk_thread *self)
    void disk_drop(disk_thread *self)
    bint disk_heard(disk_thread *self)

cdef extern from *:
    """
    #ifndef MRECORDLOG_SOURCE
    #define MRECORDLOG_SOURCE ""
    #endif
    """
    const char* MRECORDLOG_SOURCE

SOURCE = MRECORDLOG_SOURCE.decode()


cdef class DiskThread:
    """See `storage.filesystem.DiskThread`, whose methods these are. Raises OSError without a descriptor or a thread."""

    cdef disk_thread *_thread
    cdef object __weakref__

    def __cinit__(self):
        self._thread = disk_new()
        if self._thread == NULL:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self._thread != NULL:
            disk_drop(self._thread)

    def fileno(self):
        return self._thread.bell

    def use(self, int segment, int lock):
        if disk_use(self._thread, segment, lock) != 0:
            PyErr_SetFromErrno(OSError)

    def start(self, bytes kept not None, bytes frames not None, long long offset):
        cdef const char *before = kept
        cdef const char *after = frames
        return bool(disk_start(self._thread, before, len(kept), after, len(frames), offset))

    def wait(self):
        cdef int is_done
        with nogil:
            is_done = disk_wait(self._thread)
        if not is_done:
            return None
        return not self._thread.is_refused, self._thread.error, self._thread.nanoseconds * 1e-9

    def has_rung(self):
        return disk_heard(self._thread)

    def has_ended(self):
        return self._thread.ending != 0

    def end(self):
        with nogil:
            disk_end(self._thread, 1)

    def forget(self):
        disk_forget(self._thread)
