"""The C part of the queue that makes writes, compiled by itself: its system calls fail, fall short or wait as told.

It is compiled in a fraction of a second, needs no Cython, and can be compiled with a bug in it. `CoreJobs` has the
methods of `compiled._jobs.Jobs`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import textwrap
from collections import deque
from pathlib import Path
from queue import Empty
from typing import Any

import mrecordlog_async.compiled

SOURCE = Path(mrecordlog_async.compiled.__file__).parent / "_jobs.pyx"
COMPILER = shutil.which(os.environ.get("CC", "cc"))

RWF_DSYNC = 2

SEAM = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* One for each write to come: bytes that it may take, or a negative errno. 1 << 30: as it is. */
long seam_writes[16];
int seam_write_count, seam_flags, seam_links_errno, seam_links_calls;
volatile int seam_holds, seam_held;

static long seam_syscall(long number, long a, long b, long c, long d, long e, long f) {
    while (number == SYS_pwritev2 && seam_holds) { seam_held = 1; usleep(200); }
    if (number == SYS_statx) {
        seam_links_calls++;
        if (seam_links_errno) { errno = seam_links_errno; return -1; }
    }
    if (number != SYS_pwritev2) return syscall(number, a, b, c, d, e);
    long may = seam_write_count < 16 ? seam_writes[seam_write_count] : 1 << 30;
    seam_write_count++;
    seam_flags = (int)f;
    if (may < 0) { errno = (int)-may; return -1; }
    if (may == 0) return 0;
    struct iovec part = *(struct iovec *)b;
    size_t whole = part.iov_len;
    if ((size_t)may < whole) part.iov_len = (size_t)may / 4096 * 4096;  /* the disk takes whole blocks alone */
    if ((size_t)may < whole && part.iov_len == 0) return may;
    long taken = syscall(number, a, &part, c, d, e, f);
    return taken < 0 || (size_t)may >= whole ? taken : may;
}
#define SEAM_PICK(_1, _2, _3, _4, _5, _6, _7, NAME, ...) NAME
#define SEAM_6(n, a, b, c, d, e) seam_syscall(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define SEAM_7(n, a, b, c, d, e, f) seam_syscall(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define SEAM_WRONG(...) _Static_assert(0, "another number of arguments")
#define syscall(...) SEAM_PICK(__VA_ARGS__, SEAM_7, SEAM_6, SEAM_WRONG, SEAM_WRONG, SEAM_WRONG, SEAM_WRONG)(__VA_ARGS__)
#define static
"""

ACCESS = """
int core_bell(job_queue *self) { return self->bell; }
int core_begun(job_queue *self) { return self->is_begun; }
int64_t core_taken(job_queue *self) { return self->taken; }
double core_seconds(job_queue *self) { return self->nanoseconds * 1e-9; }
"""


def c_part() -> str:
    """Return the C between its marks."""
    text = SOURCE.read_text()
    start, stop = "/* begin of the C part */", "/* end of the C part */"
    return textwrap.dedent(text[text.index(start) : text.index(stop)].replace(start, ""))


@functools.cache
def build(old: str = "", new: str = "", *flags: str) -> Any:
    """Compile the C part, with *old* replaced by *new*, and load it."""
    code = c_part()
    assert not old or code.count(old) == 1, f"{old!r} is there {code.count(old)} times"
    with tempfile.TemporaryDirectory() as directory:
        source, library = Path(directory) / "core.c", Path(directory) / "core.so"
        source.write_text(SEAM + (code.replace(old, new) if old else code) + ACCESS)
        assert COMPILER is not None
        command = [COMPILER, "-O1", "-Wall", "-shared", "-fPIC", *flags, str(source), "-o", str(library), "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        loaded: Any = ctypes.CDLL(str(library), use_errno=True)
    pointer, number = ctypes.c_void_p, ctypes.c_int
    loaded.jobs_new.restype = pointer
    loaded.jobs_write.argtypes = [pointer, number, number, pointer, ctypes.c_size_t, ctypes.c_int64]
    for name in ("free", "close", "wait", "put", "ring", "heard"):
        getattr(loaded, f"jobs_{name}").argtypes = [pointer]
    for name in ("bell", "begun", "taken", "seconds"):
        getattr(loaded, f"core_{name}").argtypes = [pointer]
    loaded.core_taken.restype, loaded.core_seconds.restype = ctypes.c_int64, ctypes.c_double
    loaded.seam_array = (ctypes.c_long * 16).in_dll(loaded, "seam_writes")
    loaded.seam = {
        name: ctypes.c_int.in_dll(loaded, f"seam_{name}")
        for name in ("write_count", "flags", "links_errno", "links_calls", "holds", "held")
    }
    reset(loaded)
    return loaded


def reset(core: Any) -> None:
    """Have every system call do what it does."""
    core.seam_array[:] = [1 << 30] * 16
    for each in core.seam.values():
        each.value = 0


class CoreJobs:
    """See `engine.commit.thread.WritingJobs`."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self._jobs: deque[Any] = deque()
        self._is_told = False  # what became of the last write
        self.queue = core.jobs_new()
        if not self.queue:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def __del__(self) -> None:
        if queue := getattr(self, "queue", None):
            self.core.jobs_free(queue)

    def put(self, job: Any) -> None:
        self._jobs.append(job)
        self.core.jobs_put(self.queue)

    def get(self) -> Any:
        self.core.jobs_wait(self.queue)
        return self._jobs.popleft()

    def get_nowait(self) -> Any:
        if not self._jobs:
            raise Empty
        return self._jobs.popleft()

    def is_idle(self) -> bool:
        return bool(self.core.jobs_write(self.queue, -1, -1, None, 0, 0))

    def write(self, file: int, lock: int, blocks: memoryview, offset: int) -> bool:
        address = ctypes.addressof(ctypes.c_char.from_buffer(blocks))
        starts = self.core.jobs_write(self.queue, file, lock, address, len(blocks), offset)
        if starts:
            self._blocks, self._is_told = blocks, False
        return bool(starts)

    def result(self) -> tuple[bool, int, float]:
        core, queue = self.core, self.queue
        is_new, self._is_told = not self._is_told, True
        return is_new and bool(core.core_begun(queue)), core.core_taken(queue), core.core_seconds(queue)

    def fileno(self) -> int:
        return int(self.core.core_bell(self.queue))

    def ring(self) -> None:
        self.core.jobs_ring(self.queue)

    def has_rung(self) -> bool:
        return bool(self.core.jobs_heard(self.queue))

    def close(self) -> None:
        self.core.jobs_close(self.queue)
