"""The queue that makes writes, by itself, on real files: what it writes, what it does not begin, and how it ends.

The first part tries what was installed. The second compiles the C part, with system calls that a test decides about and
with bugs that are put in on purpose. Linux only.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

import pytest

from mrecordlog_async.compiled import new_jobs
from mrecordlog_async.engine.commit.thread import WritingJobs
from tests.compiled.jobs_core import COMPILER, RWF_DSYNC, CoreJobs, build, reset

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is Linux's")

BLOCK = 4_096
HANGS_SECONDS = 10.0

Make = Callable[[], WritingJobs]


def made_by(kind: str) -> Make:
    """Return what makes a queue: the one that was installed, or the C part compiled here."""
    if kind == "installed":
        if new_jobs is None:
            pytest.skip("there is no compiled queue")
        return new_jobs
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    core = build()
    reset(core)
    return lambda: CoreJobs(core)


@pytest.fixture(params=["installed", "core"])
def make(request: pytest.FixtureRequest) -> Make:
    """Make a queue."""
    return made_by(request.param)


class Files:
    """A segment, LOCK and their directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.segment = self.create("segment")
        self.lock = self.create("LOCK")

    def create(self, name: str) -> int:
        """Create a file of a few blocks of "-", and open it past the page cache where the file system can do that."""
        (self.directory / name).write_bytes(b"-" * 8 * BLOCK)
        try:
            return os.open(self.directory / name, os.O_RDWR | os.O_DIRECT)
        except OSError:
            return os.open(self.directory / name, os.O_RDWR)

    def content(self, name: str = "segment") -> bytes:
        """Return the bytes of a file."""
        return (self.directory / name).read_bytes()

    def close(self) -> None:
        """Close what is open."""
        for handle in (self.segment, self.lock):
            with contextlib.suppress(OSError):
                os.close(handle)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    """Create the files."""
    made = Files(tmp_path)
    yield made
    made.close()


class Worker:
    """A thread that takes jobs from a queue, and does them."""

    def __init__(self, jobs: WritingJobs, files: Files) -> None:
        self.jobs = jobs
        self.files = files
        self._thread = threading.Thread(target=self._work_off, daemon=True)
        self._thread.start()
        self.wait_for(jobs.is_idle)

    def _work_off(self) -> None:
        get: Any = self.jobs.get
        while (job := get()) is not None:
            job()

    @staticmethod
    def wait_for(done: Callable[[], object]) -> None:
        """Wait until something is so; AssertionError if it never is."""
        deadline = time.monotonic() + HANGS_SECONDS
        while not done():
            assert time.monotonic() < deadline, "it hangs"
            time.sleep(0.001)

    def begin(self, content: bytes, offset: int = 0, file: int | None = None) -> bool:
        """Begin to write *content*, and zeros up to a whole block."""
        self.staged = mmap.mmap(-1, max(-(-len(content) // BLOCK) * BLOCK, BLOCK))
        self.staged.write(content)
        file = self.files.segment if file is None else file
        return self.jobs.write(file, self.files.lock, memoryview(self.staged), offset)

    def rings(self) -> bool:
        """Return whether the bell rings within some seconds."""
        return bool(select.select([self.jobs], [], [], HANGS_SECONDS)[0]) and self.jobs.has_rung()

    def write(self, content: bytes, offset: int = 0, file: int | None = None) -> tuple[bool, int]:
        """Write *content*; return whether it was begun, and the bytes that were taken, or a negative errno."""
        assert self.begin(content, offset, file)
        assert self.rings(), "it hangs"
        self.wait_for(self.jobs.is_idle)
        return self.jobs.result()[:2]

    def end(self) -> None:
        """End the thread; AssertionError if it hangs."""
        put: Any = self.jobs.put
        put(None)
        self._thread.join(HANGS_SECONDS)
        assert not self._thread.is_alive(), "it hangs"


@contextlib.contextmanager
def worker_for(make: Make, files: Files) -> Iterator[Worker]:
    """Start a thread that writes to the segment, and end it."""
    worker = Worker(make(), files)
    yield worker
    worker.end()


def open_descriptors() -> int:
    """Return how many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


# What it does. Each takes how to make a queue, so that those with a bug can be tried too.


def writes_what_it_was_given(make: Make, files: Files) -> None:
    """Whole blocks at the offset; other blocks stay as they are."""
    with worker_for(make, files) as worker:
        assert worker.write(b"x" * 5_000, BLOCK) == (True, 2 * BLOCK)
        assert worker.write(b"short", BLOCK) == (True, BLOCK)
    expected = b"-" * BLOCK + b"short".ljust(BLOCK, b"\0") + (b"x" * 904).ljust(BLOCK, b"\0") + b"-" * 5 * BLOCK
    assert files.content() == expected


def writes_past_two_gigabytes(make: Make, files: Files) -> None:
    """An offset of more than 32 bits arrives whole."""
    os.truncate(files.directory / "segment", (5 << 30) + BLOCK)
    with worker_for(make, files) as worker:
        assert worker.write(b"far", 5 << 30) == (True, BLOCK)
    with (files.directory / "segment").open("rb") as file:
        assert file.read(3) == b"---"
        file.seek(5 << 30)
        assert file.read(4) == b"far\0"


def leaves_a_segment_with_a_second_name(make: Make, files: Files) -> None:
    """Its bytes belong to others too. Each write looks, as a name can be given at any time."""
    with worker_for(make, files) as worker:
        assert worker.write(b"x") == (True, BLOCK)
        os.link(files.directory / "segment", files.directory / "copy")
        assert worker.write(b"z") == (False, 0)
        assert files.content()[:2] == b"x\0"
        os.unlink(files.directory / "copy")
        assert worker.write(b"y") == (True, BLOCK)
    assert files.content()[:2] == b"y\0"


def leaves_a_segment_without_a_name(make: Make, files: Files) -> None:
    """What is written to it is lost."""
    with worker_for(make, files) as worker:
        os.unlink(files.directory / "segment")
        assert worker.write(b"x") == (False, 0)


def writes_nothing_without_a_lock(make: Make, files: Files) -> None:
    """Another process may have locked a new file, and write to the same segment."""
    with worker_for(make, files) as worker:
        os.unlink(files.directory / "LOCK")
        assert worker.write(b"x") == (False, 0)
    assert files.content() == b"-" * 8 * BLOCK


def writes_while_the_lock_has_two_names(make: Make, files: Files) -> None:
    """A copy by hard links takes LOCK along, which changes nothing for its holder."""
    with worker_for(make, files) as worker:
        os.link(files.directory / "LOCK", files.directory / "copy")
        assert worker.write(b"x") == (True, BLOCK)


def makes_no_write_while_there_is_a_job(make: Make, files: Files) -> None:
    """A write that came between two jobs, or while one runs, would meet what the job does to the file."""
    with worker_for(make, files) as worker:
        goes_on, put = threading.Event(), worker.jobs.put
        put(lambda: goes_on.wait(HANGS_SECONDS))  # type: ignore[arg-type]  # any job will do here
        assert not worker.begin(b"x")
        worker.wait_for(lambda: not worker.jobs.is_idle())
        assert not worker.begin(b"x")
        goes_on.set()
        worker.wait_for(worker.jobs.is_idle)
        assert worker.write(b"y") == (True, BLOCK)
    assert files.content()[:2] == b"y\0"


def reports_errors(make: Make, files: Files) -> None:
    """A file that is too large for the process's limit, and a descriptor that is not for writing."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    reading = os.open(files.directory / "segment", os.O_RDONLY)
    with worker_for(make, files) as worker:
        resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK, before[1]))
        try:
            assert worker.write(b"x", BLOCK) == (True, -errno.EFBIG)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert worker.write(b"x", BLOCK) == (True, BLOCK)
        assert worker.write(b"x", 0, reading) == (True, -errno.EBADF)
    os.close(reading)


def rings_once_for_each_write(make: Make, files: Files) -> None:
    """Even for one that was not begun, and whenever it is told to."""
    with worker_for(make, files) as worker:
        assert not worker.jobs.has_rung()
        assert worker.write(b"x") == (True, BLOCK)
        assert not worker.jobs.has_rung()
        os.link(files.directory / "segment", files.directory / "copy")
        assert worker.write(b"x") == (False, 0)
        worker.jobs.ring()
        assert worker.rings()


def closes_its_descriptor(make: Make, files: Files) -> None:
    """The last reference closes the bell, and `close` does so before that, once."""
    before = open_descriptors()
    with worker_for(make, files) as worker:
        assert open_descriptors() == before + 1
    del worker
    Worker.wait_for(lambda: open_descriptors() == before)
    with worker_for(make, files) as worker:
        worker.jobs.close()
        assert open_descriptors() == before
        other = os.dup(files.lock)  # with the number of the bell
        worker.jobs.close()
        worker.jobs.ring()
    assert open_descriptors() == before + 1
    os.close(other)


def forked_child_is_inert(make: Make, files: Files) -> None:
    """The child has no such thread: it begins nothing, hears nothing, waits for no lock, and closes its descriptor."""
    gc.collect()  # logs of other tests that nobody closed: a child closes their descriptors
    with worker_for(make, files) as worker:
        assert worker.begin(b"x")
        select.select([worker.jobs], [], [], HANGS_SECONDS)
        before = open_descriptors()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            os.close(reading)
            began, heard = worker.begin(b"of the child"), worker.jobs.has_rung()
            worker.jobs.put(None)
            worker.jobs.close()
            worker.jobs.close()
            os.write(writing, f"{began} {heard} {before + 1 - open_descriptors()}".encode())
            os._exit(0)
        os.close(writing)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert os.read(reading, 100) == b"False False 1"
        os.close(reading)
        assert worker.rings()
        assert worker.write(b"y") == (True, BLOCK)
    assert files.content()[:2] == b"y\0"


SCENES = [
    writes_what_it_was_given,
    writes_past_two_gigabytes,
    leaves_a_segment_with_a_second_name,
    leaves_a_segment_without_a_name,
    writes_nothing_without_a_lock,
    writes_while_the_lock_has_two_names,
    makes_no_write_while_there_is_a_job,
    reports_errors,
    rings_once_for_each_write,
    closes_its_descriptor,
    forked_child_is_inert,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_queue(scene: Callable[[Make, Files], None], make: Make, files: Files) -> None:
    """The first line of each scene says what it shows."""
    scene(make, files)


def put_all(put: Callable[[Any], object], jobs: list[Any]) -> None:
    """Put *jobs*, one after the other."""
    for job in jobs:
        put(job)


def test_jobs_come_in_order_and_all_of_them(make: Make, files: Files) -> None:
    """From several threads at once, with writes between them; what nobody takes any more is handed back."""
    done: list[int] = []
    with worker_for(make, files) as worker:
        put: Any = worker.jobs.put
        threads = [
            threading.Thread(
                target=lambda first=first: [put(lambda at=at: done.append(at)) for at in range(first, 900, 3)]
            )
            for first in range(3)
        ]
        for thread in threads:
            thread.start()
        written = 0
        while len(done) < 900:
            written += worker.begin(b"w")
        for thread in threads:
            thread.join()
        assert sorted(done) == list(range(900))
        assert all([at for at in done if at % 3 == first] == list(range(first, 900, 3)) for first in range(3))
    put(len)
    put(None)
    left: list[Any] = [worker.jobs.get_nowait(), worker.jobs.get_nowait()]
    assert left == [len, None]
    with pytest.raises(Empty):
        worker.jobs.get_nowait()


def test_file_systems_in_memory_are_written_too(make: Make) -> None:
    """What was there before stays."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm")
    directory = Path("/dev/shm") / f"writing-jobs-{os.getpid()}"
    directory.mkdir()
    files = Files(directory)
    try:
        writes_what_it_was_given(make, files)
    finally:
        files.close()
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def test_storm_of_signals_changes_nothing(make: Make, files: Files) -> None:
    """Writes and waits are whole while a signal arrives every few microseconds."""
    hits = 0

    def count(*_: object) -> None:
        nonlocal hits
        hits += 1

    before = signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        with worker_for(make, files) as worker:
            for number in range(300):
                assert worker.write(b"%05d" % number) == (True, BLOCK)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits > 10
    assert files.content()[:6] == b"00299\0"


# With system calls that a test decides about.


@pytest.fixture
def core() -> Iterator[Any]:
    """Compile the C part."""
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    built = build()
    reset(built)
    yield built
    reset(built)


def reports_what_was_taken(core: Any, files: Files) -> None:
    """All, a part or nothing of it: what follows from that is not decided here."""
    with worker_for(lambda: CoreJobs(core), files) as worker:
        for taken in (BLOCK, BLOCK + 700, 300, 0):
            reset(core)
            core.seam_array[0] = taken
            assert worker.write(b"a" * 2 * BLOCK) == (True, taken)
            assert core.seam["write_count"].value == 1
        assert worker.write(b"b" * 2 * BLOCK) == (True, 2 * BLOCK)
        assert worker.jobs.result()[2] > 0


def tries_interrupted_calls_again(core: Any, files: Files) -> None:
    """EINTR does not come from the disk."""
    with worker_for(lambda: CoreJobs(core), files) as worker:
        core.seam_array[:2] = [-errno.EINTR, -errno.EINTR]
        assert worker.write(b"a") == (True, BLOCK)
    assert files.content()[:2] == b"a\0"


def reports_the_errno(core: Any, files: Files) -> None:
    """And tries nothing again; the next write starts anew."""
    with worker_for(lambda: CoreJobs(core), files) as worker:
        core.seam_array[0] = -errno.EIO
        assert worker.write(b"a") == (True, -errno.EIO)
        assert core.seam["write_count"].value == 1
        assert worker.write(b"b") == (True, BLOCK)


def begins_nothing_if_the_system_does_not_report_links(core: Any, files: Files) -> None:
    """A name more may be there."""
    with worker_for(lambda: CoreJobs(core), files) as worker:
        core.seam["links_errno"].value = errno.EIO
        assert worker.write(b"x") == (False, 0)
    assert files.content() == b"-" * 8 * BLOCK
    assert core.seam["write_count"].value == 0


def writes_durably(core: Any, files: Files) -> None:
    """The call brings its bytes to the medium."""
    with worker_for(lambda: CoreJobs(core), files) as worker:
        assert worker.write(b"x") == (True, BLOCK)
    assert core.seam["flags"].value == RWF_DSYNC


def job_waits_for_the_write_under_way(core: Any, files: Files) -> None:
    """One that was put meanwhile begins after it, and no other write does meanwhile."""
    found: list[bytes] = []
    with worker_for(lambda: CoreJobs(core), files) as worker:
        core.seam["holds"].value = 1
        try:
            assert worker.begin(b"first")
            worker.wait_for(lambda: core.seam["held"].value)
            worker.jobs.put(lambda: found.append(files.content()[:5]))  # type: ignore[arg-type]  # any job will do here
            assert not worker.begin(b"second")
            assert not found
        finally:
            core.seam["holds"].value = 0
        worker.wait_for(lambda: found)
    assert found == [b"first"]


CORE_SCENES = [
    reports_what_was_taken,
    tries_interrupted_calls_again,
    reports_the_errno,
    begins_nothing_if_the_system_does_not_report_links,
    writes_durably,
    job_waits_for_the_write_under_way,
]


@pytest.mark.parametrize("scene", CORE_SCENES, ids=lambda scene: scene.__name__)
def test_core(scene: Callable[[Any, Files], None], core: Any, files: Files) -> None:
    """The first line of each scene says what it shows."""
    scene(core, files)


# The bugs.

LINKS = "self->is_begun = jobs_links(self->file) == 1 && jobs_links(self->lock) >= 1;"


class Bug(NamedTuple):
    """What is replaced in the C part, by what, and the scene that must find it."""

    old: str
    new: str
    scene: Callable[[Any, Files], None]


BUGS = {
    "failed_statx_taken_for_one_name": Bug(
        "!= 0) return -1;", "!= 0) return 1;", begins_nothing_if_the_system_does_not_report_links
    ),
    "links_of_the_segment_not_looked_at": Bug(
        LINKS, LINKS.replace("jobs_links(self->file) == 1 && ", ""), leaves_a_segment_with_a_second_name
    ),
    "removed_segment_written": Bug(LINKS, LINKS.replace("== 1", "<= 1"), leaves_a_segment_without_a_name),
    "links_of_the_lock_not_looked_at": Bug(
        LINKS, LINKS.replace(" && jobs_links(self->lock) >= 1", ""), writes_nothing_without_a_lock
    ),
    "links_looked_at_once": Bug(LINKS, f"if (!self->nanoseconds) {LINKS}", leaves_a_segment_with_a_second_name),
    "what_was_taken_not_reported": Bug(
        "self->taken = syscall(", "self->taken = self->length; syscall(", reports_what_was_taken
    ),
    "interrupted_call_taken_for_an_error": Bug(
        "while (self->taken == -EINTR);", "while (0);", tries_interrupted_calls_again
    ),
    "failed_call_tried_again": Bug("while (self->taken == -EINTR);", "while (self->taken < 0);", reports_the_errno),
    "errno_lost": Bug("self->taken = -errno;", "self->taken = -EINVAL;", reports_the_errno),
    "write_that_was_not_begun_does_not_ring": Bug(
        "        jobs_ring(self);\n        pthread_mutex_lock",
        "        if (self->is_begun) jobs_ring(self);\n        pthread_mutex_lock",
        rings_once_for_each_write,
    ),
    "written_without_a_sync": Bug("(long)JOBS_RWF_DSYNC", "0L", writes_durably),
    "offset_cut_to_32_bits": Bug(
        "(unsigned long)self->offset", "(unsigned long)(uint32_t)self->offset", writes_past_two_gigabytes
    ),
    "write_next_to_a_job": Bug(
        "    idle = self->waits && !self->jobs && !self->writes;\n    if (idle && length) {",
        "    idle = !self->writes;\n    if (idle && length) {",
        makes_no_write_while_there_is_a_job,
    ),
    "write_over_the_one_under_way": Bug(
        "    idle = self->waits && !self->jobs && !self->writes;\n    if (idle && length) {",
        "    idle = self->waits;\n    if (idle && length) {",
        job_waits_for_the_write_under_way,
    ),
    "bell_left_open": Bug("if (self->bell >= 0) close(self->bell);", "", closes_its_descriptor),
    "bell_closed_twice": Bug("    self->bell = -1;\n", "", closes_its_descriptor),
    "forked_child_hears_the_bell": Bug("return self->pid == getpid() && read", "return read", forked_child_is_inert),
}
"""Bugs of the C part."""


@pytest.mark.parametrize("name", BUGS)
def test_seeded_bug_is_found(name: str, tmp_path: Path) -> None:
    """With the bug in the C part, its scene finds a broken promise."""
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    old, new, scene = BUGS[name]
    core = build(old, new)
    reset(core)
    files = Files(tmp_path)
    with pytest.raises((AssertionError, ValueError)):
        scene(core if scene in CORE_SCENES else lambda: CoreJobs(core), files)
    reset(core)
