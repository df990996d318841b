"""The disk thread by itself, on real files: what it writes, what it refuses, and how it ends. Linux only.

The first part tries what was installed. The second compiles the C part, with system calls that a test decides about and
with bugs that are put in on purpose.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Overdue
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mrecordlog_async.compiled import new_disk_thread
from mrecordlog_async.storage.filesystem import DiskThread
from tests.compiled.disk_core import COMPILER, RWF_DSYNC, CoreThread, build, reset

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the disk thread is Linux's")

BLOCK = 4_096
HANGS_SECONDS = 10.0

Make = Callable[[], DiskThread]


def made_by(kind: str) -> Make:
    """Return what makes a thread: the one that was installed, or the C part compiled here."""
    if kind == "installed":
        if new_disk_thread is None:
            pytest.skip("there is no compiled disk thread")
        return new_disk_thread
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    core = build()
    reset(core)
    return lambda: CoreThread(core)


@pytest.fixture(params=["installed", "core"])
def make(request: pytest.FixtureRequest) -> Make:
    """Make a disk thread."""
    return made_by(request.param)


class Files:
    """A segment, LOCK and their directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.segment = self.create("segment")
        self.lock = self.create("LOCK")

    def create(self, name: str) -> int:
        """Create a file of a few blocks of "-", or open it, past the page cache where the file system can do it."""
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


@contextlib.contextmanager
def thread_for(make: Make, files: Files) -> Iterator[DiskThread]:
    """Make a thread that writes to the segment, and end it."""
    thread = make()
    thread.use(files.segment, files.lock)
    yield thread
    in_time(thread.end)


def in_time(work: Callable[[], Any]) -> Any:
    """Do *work*; AssertionError if it hangs."""
    return result_of(begin(work))


def begin(work: Callable[[], Any]) -> Future[Any]:
    """Do *work* in a thread that no exit waits for."""
    future: Future[Any] = Future()
    threading.Thread(target=lambda: future.set_result(work()), daemon=True).start()
    return future


def result_of(future: Future[Any]) -> Any:
    """Wait for what was begun; AssertionError if it hangs."""
    try:
        return future.result(HANGS_SECONDS)
    except Overdue:
        raise AssertionError("it hangs") from None


def write(thread: DiskThread, frames: bytes, offset: int = 0, kept: bytes = b"") -> tuple[bool, int]:
    """Write, and wait for that; return whether it was begun, and the error."""
    assert thread.start(kept, frames, offset)
    written = in_time(thread.wait)
    assert written is not None
    return written[0], written[1]


def rings(thread: DiskThread) -> bool:
    """Return whether the bell rings within some seconds."""
    return bool(select.select([thread], [], [], HANGS_SECONDS)[0]) and thread.has_rung()


def open_descriptors() -> int:
    """Return how many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


def thread_count() -> int:
    """Return how many threads this process has. The kernel's count: a list of them misses some while others end."""
    _, _, after = Path("/proc/self/status").read_text().partition("Threads:")
    return int(after.split()[0])


def tasks() -> dict[str, str]:
    """Return the status of each disk thread of this process."""
    found = {}
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/self/task/{task}/status").read_text()
            if "mrecordlog disk" in status:
                found[task] = status
    return found


# What it does. Each takes how to make a thread, so that those with a bug can be tried too.


def writes_what_it_was_given(make: Make, files: Files) -> None:
    """The kept bytes, the frames, and zeros up to the block's end; other blocks stay as they are."""
    with thread_for(make, files) as thread:
        assert write(thread, b"x" * 5_000, BLOCK, b"kept") == (True, 0)
        assert write(thread, b"short", BLOCK, b"") == (True, 0)
        assert thread.wait() is None
    expected = b"-" * BLOCK + b"short".ljust(BLOCK, b"\0") + (b"x" * 908).ljust(BLOCK, b"\0") + b"-" * 5 * BLOCK
    assert files.content() == expected


def writes_past_two_gigabytes(make: Make, files: Files) -> None:
    """An offset of more than 32 bits arrives whole."""
    os.truncate(files.directory / "segment", (5 << 30) + BLOCK)
    with thread_for(make, files) as thread:
        assert write(thread, b"far", 5 << 30) == (True, 0)
    with (files.directory / "segment").open("rb") as file:
        assert file.read(3) == b"---"
        file.seek(5 << 30)
        assert file.read(4) == b"far\0"


def refuses_a_segment_with_a_second_name(make: Make, files: Files) -> None:
    """Its bytes belong to others too. Each write looks, as a name can be given at any time."""
    with thread_for(make, files) as thread:
        assert write(thread, b"x") == (True, 0)
        os.link(files.directory / "segment", files.directory / "copy")
        assert write(thread, b"z") == (False, 0)
        assert files.content()[:2] == b"x\0"
        os.unlink(files.directory / "copy")
        assert write(thread, b"y") == (True, 0)
    assert files.content()[:2] == b"y\0"


def refuses_a_segment_without_a_name(make: Make, files: Files) -> None:
    """What is written to it is lost."""
    with thread_for(make, files) as thread:
        os.unlink(files.directory / "segment")
        assert write(thread, b"x") == (False, 0)


def refuses_without_a_lock(make: Make, files: Files) -> None:
    """Another process may have locked a new file, and write to the same segment."""
    with thread_for(make, files) as thread:
        os.unlink(files.directory / "LOCK")
        assert write(thread, b"x") == (False, 0)
    assert files.content() == b"-" * 8 * BLOCK


def writes_while_the_lock_has_two_names(make: Make, files: Files) -> None:
    """A copy by hard links takes LOCK along, which changes nothing for its holder."""
    with thread_for(make, files) as thread:
        os.link(files.directory / "LOCK", files.directory / "copy")
        assert write(thread, b"x") == (True, 0)


def refuses_what_is_not_for_it(make: Make, files: Files) -> None:
    """Too many bytes, an offset inside a block, no file, a second write at once."""
    thread = make()
    assert not thread.start(b"", b"x", 0)
    thread.use(files.segment, files.lock)
    assert not thread.start(b"", bytes(64 * 1024 + 1), 0)
    assert not thread.start(b"", b"x", 100)
    thread.use(-1, -1)
    assert not thread.start(b"", b"x", 0)
    in_time(thread.end)
    thread.use(files.segment, files.lock)
    assert not thread.start(b"", b"x", 0)
    assert files.content() == b"-" * 8 * BLOCK


def keeps_to_its_own_descriptors(make: Make, files: Files) -> None:
    """Once the log has closed its segment, the number may be that of anybody's file. It is never written to."""
    with thread_for(make, files) as thread:
        os.close(files.segment)
        stranger = files.create("stranger")
        assert stranger == files.segment
        write(thread, b"mine")
        os.close(stranger)
    assert files.content("stranger") == b"-" * 8 * BLOCK
    assert files.content()[:5] == b"mine\0"


def closes_what_it_used(make: Make, files: Files) -> None:
    """Another segment, no segment and the end close the duplicates; the last reference closes the bell."""
    before = open_descriptors()
    thread = make()
    thread.use(files.segment, files.lock)
    for _ in range(3):
        thread.use(files.segment, files.lock)
        assert open_descriptors() == before + 3
    thread.use(-1, -1)
    assert open_descriptors() == before + 1
    thread.use(files.segment, files.lock)
    in_time(thread.end)
    assert open_descriptors() == before + 1
    assert not tasks()
    del thread
    assert open_descriptors() == before


def reports_errors(make: Make, files: Files) -> None:
    """A file that is too large for the process's limit, and a descriptor that is not for writing."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    reading = os.open(files.directory / "segment", os.O_RDONLY)
    with thread_for(make, files) as thread:
        resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK, before[1]))
        try:
            assert write(thread, b"x", BLOCK) == (True, errno.EFBIG)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert write(thread, b"x", BLOCK) == (True, 0)
        thread.use(reading, files.lock)
        assert write(thread, b"x") == (True, errno.EBADF)
    os.close(reading)


def rings_after_each_write_and_at_the_end(make: Make, files: Files) -> None:
    """Even after one that was refused, and only once."""
    with thread_for(make, files) as thread:
        assert not thread.has_rung()
        write(thread, b"x")
        assert rings(thread)
        assert not thread.has_rung()
        os.link(files.directory / "segment", files.directory / "copy")
        write(thread, b"x")
        assert rings(thread)
        assert not thread.has_ended()
    assert thread.has_ended()
    assert rings(thread)


def blocks_signals(make: Make, files: Files) -> None:
    """Signals are for the interpreter's threads: otherwise its handlers run here, without its lock."""
    with thread_for(make, files) as thread:
        write(thread, b"x")
        (status,) = tasks().values()
        blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGALRM, signal.SIGURG):
        assert blocked >> (number - 1) & 1, number


def forked_child_is_inert(make: Make, files: Files) -> None:
    """The child has no such thread: it begins nothing, waits for nothing, and closes its copies of the descriptors."""
    with thread_for(make, files) as thread:
        write(thread, b"x")
        assert thread.has_rung()
        before = open_descriptors()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            os.close(reading)
            began = thread.start(b"", b"of the child", 0)
            waited = thread.wait()
            thread.forget()
            closed = before + 1 - open_descriptors()
            thread.end()
            os.write(writing, f"{began} {waited} {closed} {thread.has_rung()}".encode())
            os._exit(0)
        os.close(writing)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert os.read(reading, 100) == b"False None 3 False"
        os.close(reading)
        assert write(thread, b"y") == (True, 0)
        assert rings(thread)
    assert files.content()[:2] == b"y\0"


def forked_child_hears_nothing(make: Make, files: Files) -> None:
    """Both share the bell: what the child read, the parent would never hear."""
    with thread_for(make, files) as thread:
        write(thread, b"x")
        child = os.fork()
        if child == 0:
            os._exit(1 if thread.has_rung() else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert rings(thread)


SCENES = [
    writes_what_it_was_given,
    writes_past_two_gigabytes,
    refuses_a_segment_with_a_second_name,
    refuses_a_segment_without_a_name,
    refuses_without_a_lock,
    writes_while_the_lock_has_two_names,
    refuses_what_is_not_for_it,
    keeps_to_its_own_descriptors,
    closes_what_it_used,
    reports_errors,
    rings_after_each_write_and_at_the_end,
    blocks_signals,
    forked_child_is_inert,
    forked_child_hears_nothing,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_thread(scene: Callable[[Make, Files], None], make: Make, files: Files) -> None:
    """The first line of each scene says what it shows."""
    scene(make, files)


def test_file_systems_in_memory_are_written_too(make: Make) -> None:
    """A full one reports that; what was there before stays."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm")
    directory = Path("/dev/shm") / f"disk-thread-{os.getpid()}"
    directory.mkdir()
    files = Files(directory)
    try:
        writes_what_it_was_given(make, files)
    finally:
        files.close()
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def test_thousand_threads_leave_nothing(make: Make, files: Files) -> None:
    """Neither ended threads nor forgotten ones keep a descriptor or a thread."""
    before, threads = open_descriptors(), thread_count()
    for number in range(1_000):
        thread = make()
        thread.use(files.segment, files.lock)
        assert thread.start(b"", b"%d" % number, 0)
        if number % 2:
            in_time(thread.end) if number < 20 else thread.end()
        del thread
    deadline = time.monotonic() + HANGS_SECONDS
    while thread_count() > threads and time.monotonic() < deadline:  # those that were forgotten end by themselves
        time.sleep(0.01)
    assert thread_count() <= threads
    assert not tasks()
    assert open_descriptors() == before


def test_storm_of_signals_changes_nothing(make: Make, files: Files) -> None:
    """Writes and waits are whole while a signal arrives every few microseconds."""
    hits = 0

    def count(*_: object) -> None:
        nonlocal hits
        hits += 1

    before = signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        with thread_for(make, files) as thread:
            for number in range(300):
                assert thread.start(b"", b"%05d" % number, 0)
                written = thread.wait()
                assert written is not None
                assert written[:2] == (True, 0)
                assert thread.has_rung()
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


def continues_short_writes_at_a_whole_block(core: Any, files: Files) -> None:
    """What the disk took of a block is written again. A write that is short twice in a row fails."""
    with thread_for(lambda: CoreThread(core), files) as thread:
        core.seam_array[:3] = [BLOCK, BLOCK + 700, 300]
        assert write(thread, b"a" * 5 * BLOCK) == (True, 0)
        assert core.seam["write_count"].value == 4
        assert files.content() == b"a" * 5 * BLOCK + b"-" * 3 * BLOCK
        for pattern in ([0], [300, 300], [BLOCK, 0]):
            reset(core)
            core.seam_array[: len(pattern)] = pattern
            assert write(thread, b"b" * 2 * BLOCK) == (True, -1), pattern
            assert core.seam["write_count"].value == len(pattern)


def tries_interrupted_calls_again(core: Any, files: Files) -> None:
    """EINTR does not come from the disk."""
    with thread_for(lambda: CoreThread(core), files) as thread:
        core.seam_array[:2] = [-errno.EINTR, -errno.EINTR]
        assert write(thread, b"a") == (True, 0)
    assert files.content()[:2] == b"a\0"


def reports_the_errno(core: Any, files: Files) -> None:
    """Of the first call or a later one; the next write starts again."""
    with thread_for(lambda: CoreThread(core), files) as thread:
        core.seam_array[0] = -errno.EIO
        assert write(thread, b"a") == (True, errno.EIO)
        assert rings(thread)
        reset(core)
        core.seam_array[:2] = [BLOCK, -errno.ENOSPC]
        assert write(thread, b"a" * 2 * BLOCK) == (True, errno.ENOSPC)
        assert write(thread, b"b") == (True, 0)


def refuses_if_the_system_does_not_report_links(core: Any, files: Files) -> None:
    """A name more may be there: nothing is written."""
    with thread_for(lambda: CoreThread(core), files) as thread:
        core.seam["links_errno"].value = errno.EIO
        assert write(thread, b"x") == (False, 0)
    assert files.content() == b"-" * 8 * BLOCK
    assert core.seam["write_count"].value == 0


def writes_durably(core: Any, files: Files) -> None:
    """Each call brings its bytes to the medium."""
    with thread_for(lambda: CoreThread(core), files) as thread:
        assert write(thread, b"x") == (True, 0)
    assert core.seam["flags"].value == RWF_DSYNC


def end_waits_for_the_write_under_way(core: Any, files: Files) -> None:
    """The write is made, its result is there to take, and only then are the descriptors closed."""
    with thread_for(lambda: CoreThread(core), files) as thread:
        core.seam["holds"].value = 1
        try:
            assert thread.start(b"", b"late", 0)
            assert not thread.start(b"", b"too soon", 0)
            ending = begin(thread.end)
            waiting = begin(thread.wait)
            while not core.seam["held"].value:
                time.sleep(0.001)
            assert not ending.done()
            assert not waiting.done()
        finally:
            core.seam["holds"].value = 0
        result_of(ending)
        written = result_of(waiting)
        assert written is not None
        assert written[:2] == (True, 0)
    assert files.content()[:5] == b"late\0"


def what_was_started_is_written_before_the_end(core: Any, files: Files) -> None:
    """Even if the thread had not begun when it was told to end."""
    for number in range(300):
        with thread_for(lambda: CoreThread(core), files) as thread:
            assert thread.start(b"", b"%05d" % number, 0)
        written = in_time(thread.wait)
        assert written is not None
        assert written[:2] == (True, 0)
        assert files.content()[:5] == b"%05d" % number


def dropped_thread_finishes_and_frees_itself(core: Any, files: Files) -> None:
    """An exit does not wait for a disk that hangs: what is left ends by itself."""
    before = open_descriptors()
    thread = CoreThread(core)
    thread.use(files.segment, files.lock)
    core.seam["holds"].value = 1
    try:
        assert thread.start(b"", b"left", 0)
        while not core.seam["held"].value:
            time.sleep(0.001)
        in_time(thread.drop)
        assert open_descriptors() > before
    finally:
        core.seam["holds"].value = 0
    deadline = time.monotonic() + HANGS_SECONDS
    while tasks() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert open_descriptors() == before
    assert files.content()[:5] == b"left\0"


def fork_during_a_write_leaves_it_whole(core: Any, files: Files) -> None:
    """The child shares the staged bytes, and cannot change them; the parent's write ends as if nothing had happened."""
    with thread_for(lambda: CoreThread(core), files) as thread:
        core.seam["holds"].value = 1
        try:
            assert thread.start(b"", b"p" * 2 * BLOCK, 0)
            while not core.seam["held"].value:
                time.sleep(0.001)
            child = os.fork()
            if child == 0:
                signal.alarm(5)
                ok = not thread.start(b"", b"c" * 2 * BLOCK, 0) and thread.wait() is None
                thread.end()
                thread.forget()
                assert isinstance(thread, CoreThread)
                thread.drop()
                os._exit(0 if ok else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            core.seam["holds"].value = 0
        written = in_time(thread.wait)
        assert written is not None
        assert written[:2] == (True, 0)
    assert files.content()[: 2 * BLOCK] == b"p" * 2 * BLOCK


CORE_SCENES = [
    continues_short_writes_at_a_whole_block,
    tries_interrupted_calls_again,
    reports_the_errno,
    refuses_if_the_system_does_not_report_links,
    writes_durably,
    end_waits_for_the_write_under_way,
    what_was_started_is_written_before_the_end,
    dropped_thread_finishes_and_frees_itself,
    fork_during_a_write_leaves_it_whole,
]


@pytest.mark.parametrize("scene", CORE_SCENES, ids=lambda scene: scene.__name__)
def test_core(scene: Callable[[Any, Files], None], core: Any, files: Files) -> None:
    """The first line of each scene says what it shows."""
    scene(core, files)


# The bugs.

LINKS = "self->is_refused = disk_links(self->segment) != 1 || disk_links(self->lock) < 1;"


class Bug(NamedTuple):
    """What is replaced in the C part, by what, and the scene that must find it."""

    old: str
    new: str
    scene: Callable[[Any, Files], None]


BUGS = {
    "failed_statx_taken_for_one_name": Bug(
        "!= 0) return -1;",
        "!= 0) return 1;",
        refuses_if_the_system_does_not_report_links,
    ),
    "links_of_the_segment_not_looked_at": Bug(
        LINKS,
        "self->is_refused = disk_links(self->lock) < 1;",
        refuses_a_segment_with_a_second_name,
    ),
    "removed_segment_written": Bug(
        LINKS,
        LINKS.replace("!= 1", "> 1"),
        refuses_a_segment_without_a_name,
    ),
    "links_of_the_lock_not_looked_at": Bug(
        LINKS,
        "self->is_refused = disk_links(self->segment) != 1;",
        refuses_without_a_lock,
    ),
    "links_looked_at_once": Bug(
        LINKS,
        f"if (!self->nanoseconds) {LINKS}",
        refuses_a_segment_with_a_second_name,
    ),
    "short_write_taken_for_an_error": Bug(
        "was_short = is_short;",
        "was_short = is_short; if (at < self->length) { self->error = EIO; break; }",
        continues_short_writes_at_a_whole_block,
    ),
    "short_write_taken_for_a_whole_one": Bug(
        "was_short = is_short;",
        "break;",
        continues_short_writes_at_a_whole_block,
    ),
    "short_write_continued_inside_a_block": Bug(
        "(taken - taken % DISK_BLOCK)",
        "(taken)",
        continues_short_writes_at_a_whole_block,
    ),
    "write_without_progress_repeated_for_ever": Bug(
        "if (taken == 0 || (is_short && was_short))",
        "if (taken == 0 && seam_write_count > 9)",
        continues_short_writes_at_a_whole_block,
    ),
    "interrupted_call_taken_for_an_error": Bug(
        "if (taken < 0 && errno == EINTR) continue;",
        "",
        tries_interrupted_calls_again,
    ),
    "errno_lost": Bug(
        "self->error = errno;",
        "self->error = EINVAL;",
        reports_the_errno,
    ),
    "error_of_the_write_before_kept": Bug(
        "    self->error = 0;\n",
        "    if (self->error > 0) { self->nanoseconds = 0; return; }\n",
        reports_the_errno,
    ),
    "failed_write_does_not_ring": Bug(
        "        disk_ring(self);\n        pthread_cond_broadcast",
        "        if (!self->error) disk_ring(self);\n        pthread_cond_broadcast",
        reports_the_errno,
    ),
    "written_without_a_sync": Bug(
        "(long)DISK_RWF_DSYNC",
        "0L",
        writes_durably,
    ),
    "offset_cut_to_32_bits": Bug(
        "(unsigned long)offset",
        "(unsigned long)(uint32_t)offset",
        writes_past_two_gigabytes,
    ),
    "bytes_after_the_batch_not_zeroed": Bug(
        "memset(self->staged + size, 0, whole - size);",
        "",
        writes_what_it_was_given,
    ),
    "signals_not_blocked": Bug(
        "pthread_sigmask(SIG_SETMASK, &all, &before);",
        "pthread_sigmask(SIG_BLOCK, NULL, &before);",
        blocks_signals,
    ),
    "descriptors_of_the_log_used": Bug(
        "own_segment = fcntl(segment, F_DUPFD_CLOEXEC, 3);",
        "own_segment = segment;",
        keeps_to_its_own_descriptors,
    ),
    "duplicates_left_open": Bug(
        "    disk_close(&self->segment);\n    disk_close(&self->lock);\n    self->segment = own_segment;",
        "    self->segment = own_segment;",
        closes_what_it_used,
    ),
    "end_forgets_what_was_started": Bug(
        "if (self->state != DISK_STARTED) break;",
        "if (self->ending) break;",
        what_was_started_is_written_before_the_end,
    ),
    "exit_waits_for_the_disk": Bug(
        "    disk_end(self, 0);\n",
        "    disk_end(self, 1);\n",
        dropped_thread_finishes_and_frees_itself,
    ),
    "forked_child_begins_a_write": Bug(
        "if (self->pid != getpid() || whole",
        "if (whole",
        forked_child_is_inert,
    ),
    "forked_child_keeps_its_copies": Bug(
        "    if (self->pid == getpid()) return;\n",
        "    return;\n",
        forked_child_is_inert,
    ),
    "forked_child_hears_the_bell": Bug(
        "return self->pid == getpid() && read",
        "return read",
        forked_child_hears_nothing,
    ),
}
"""Every bug of the C part."""


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
        scene(core if scene in CORE_SCENES else lambda: CoreThread(core), files)
    reset(core)
