"""Real processes on the real disk: killed, forked, limited, cancelled, or left without a loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrecordlog_async import (
    Limits,
    LogClosedError,
    LogFailedError,
    LogFullError,
    LogLockedError,
    LogState,
    MultiRecordLog,
    PersistPolicy,
    ReadOnlyLog,
    RecordTooLargeError,
)
from mrecordlog_async.engine.commit.journal import Journal
from tests.cached_files import CachedFiles
from tests.engine.test_reclaim import open_files
from tests.said import at_any_speed

SEGMENT_BYTES = 4 * 32_768

PREAMBLE = """
import asyncio, logging, os, resource, signal, sys, threading
from mrecordlog_async import *
# How long a step took depends on the machine; every other warning of -X dev is a bug of the log.
logging.getLogger("asyncio").addFilter(lambda record: not str(record.msg).startswith("Executing "))
DIRECTORY = sys.argv[1]
def open_log(**options):
    return MultiRecordLog.open(DIRECTORY, segment_bytes=4 * 32768, **options)
"""


def start(code: str, directory: Path) -> subprocess.Popen[str]:
    """Start a process that runs *code* with the log's directory as its argument."""
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", PREAMBLE + textwrap.dedent(code), str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code: str, directory: Path) -> str:
    """Run *code* and return what it printed. It must succeed and print nothing on standard error."""
    process = start(code, directory)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, at_any_speed(err)) == (0, ""), err
    return str(out)


async def records(directory: Path, queue: str = "q") -> list[bytes]:
    """Open the log and return the payloads of *queue*."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        return [payload for _, payload in log.range(queue)]


KILLED = """
async def main():
    log = await open_log()
    await log.create_queue("q", exist_ok=True)
    async def caller(name):
        number = 0
        while True:
            position = await log.append_record("q", None, b"%d-%d " % (name, number) * (1 + number % 40))
            os.write(1, b"%d %d %d\\n" % (position, name, number))
            number += 1
            if number % 50 == 0:
                await log.truncate("q", position - 40)
    await asyncio.gather(*(caller(name) for name in range(8)))
asyncio.run(main())
"""


async def test_kill_9_in_a_loop_loses_nothing_that_was_answered(directory: Path) -> None:
    """Each life is killed at a random moment; every acknowledged record is found, unless truncated."""
    chance = random.Random(9)
    next_position = 0
    for _ in range(5):
        process = start(KILLED, directory)
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.readline()
        deadline = time.monotonic() + chance.uniform(0.02, 0.3)
        lines = [first]
        while time.monotonic() < deadline:
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        lines += [line for line in process.stdout.read().splitlines() if line.count(" ") == 2]
        process.wait()
        process.stdout.close()
        process.stderr.close()
        answered = [tuple(map(int, line.split())) for line in lines]
        async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
            found = dict(log.range("q"))
            low, high = log.first_position("q"), log.next_position("q")
        assert min(position for position, *_ in answered) >= next_position
        for position, name, number in answered:
            assert position < high
            if position >= low:
                assert found[position] == b"%d-%d " % (name, number) * (1 + number % 40)
        next_position = high


async def test_second_process_is_refused_with_the_owners_pid(directory: Path) -> None:
    """One writer per directory, across processes; the lock ends with its process."""
    async with MultiRecordLog.open(directory):
        out = run(
            """
            async def main():
                try:
                    await open_log()
                except LogLockedError as error:
                    print(error.owner_pid)
            asyncio.run(main())
            """,
            directory,
        )
        assert int(out) == os.getpid()
    process = start(
        "async def main():\n    await open_log()\n    print(1, flush=True)\n    os._exit(1)\nasyncio.run(main())",
        directory,
    )
    process.communicate(timeout=240)
    async with MultiRecordLog.open(directory):
        with pytest.raises(LogLockedError):
            await MultiRecordLog.open(directory)


def test_forked_child_writes_nothing_and_unlocks_nothing(directory: Path) -> None:
    """In the child every call raises. When the child exits, the parent keeps its lock and its records."""
    out = run(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork while a thread runs is what is tested here
        async def main():
            async with open_log() as log:
                await log.create_queue("q")
                await log.append_record("q", None, b"parent")
                child = os.fork()
                if not child:
                    try:
                        log.range("q")
                    except LogClosedError:
                        os._exit(7)
                    os._exit(1)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                try:
                    await open_log()
                except LogLockedError as error:
                    print(error.owner_pid == os.getpid())
                await log.append_record("q", None, b"after")
                print([bytes(record.payload) for record in log.range("q")])
        asyncio.run(main())
        """,
        directory,
    )
    assert out.split("\n")[:3] == ["7", "True", "[b'parent', b'after']"]


def test_forked_child_that_lives_on_keeps_nothing(directory: Path) -> None:
    """After the parent's close the directory is unlocked, and the space of removed segments is freed."""
    child_holds_nothing(directory)


PATCHED = "from mrecordlog_async.engine.running import Engine\n"


def child_holds_nothing(directory: Path | None = None, *, bug: bool = False) -> None:
    """Fork with an open log, close it in the parent, and open it again while the child lives."""
    with tempfile.TemporaryDirectory() as temporary:
        out = run(
            (f"{PATCHED}Engine.disown = lambda self: setattr(self, '_foreign', True)\n" if bug else "")
            + textwrap.dedent(
                """
                import warnings
                warnings.simplefilter("ignore", DeprecationWarning)  # a fork while a thread runs is what is tested here
                async def main():
                    done, wait = os.pipe()
                    lives, say = os.pipe()
                    async with open_log() as log:
                        await log.create_queue("q")
                        child = os.fork()
                        if not child:
                            os.close(wait)
                            os.write(say, b"!")
                            os.read(done, 1)
                            os._exit(0)
                    os.close(done)
                    os.read(lives, 1)
                    try:
                        async with open_log():
                            print("free")
                    except LogLockedError:
                        print("locked")
                    held = [os.readlink(f"/proc/{child}/fd/{handle}") for handle in os.listdir(f"/proc/{child}/fd")]
                    print([name for name in held if name.startswith(DIRECTORY)])
                    os.close(wait)
                    os.waitpid(child, 0)
                asyncio.run(main())
                """
            ),
            directory or Path(temporary) / "wal",
        )
    assert out == "free\n[]\n", out


def test_file_size_limit_refuses_appends_and_lets_truncate_through(directory: Path) -> None:
    """RLIMIT_FSIZE is reached when space is reserved: appends are refused, nothing is torn, and truncate works."""
    out = run(
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        logging.getLogger("mrecordlog_async").setLevel(logging.ERROR)  # that appends are refused is a warning
        async def main():
            async with open_log() as log:
                await log.create_queue("q")
                resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
                stored = refused = 0
                for number in range(40):
                    try:
                        await log.append_record("q", None, bytes(150_000))
                        stored += 1
                    except LogFullError as error:
                        refused += 1
                    if number == 20:
                        await log.append_record("q", None, b"small")
                        await log.truncate("q", 3)
                try:
                    await log.append_record("q", None, bytes(400_000))
                except LogFullError as error:
                    print(error.resource, stored, refused, log.state)
        asyncio.run(main())
        """,
        directory,
    )
    assert out.split() == ["space", "40", "0", "open"]


def test_running_out_of_descriptors_does_not_stop_the_log(directory: Path) -> None:
    """Under RLIMIT_NOFILE, the log opens early what it needs later, and a roll closes as many files as it opens."""
    out = run(
        """
        async def main():
            async with open_log() as log:
                await log.create_queue("q")
                hog = []
                while True:
                    try:
                        hog.append(os.open("/dev/null", os.O_RDONLY))
                    except OSError:
                        break
                for _ in range(12):
                    await log.append_record("q", None, bytes(50_000))
                await log.truncate("q", 7)
                await log.append_record("q", None, bytes(50_000))
                print(log.stats().rolls > 3, log.state)
                for handle in hog:
                    os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        asyncio.run(main())
        """,
        directory,
    )
    assert out.split() == ["True", "open"]


@contextlib.contextmanager
def mounted(directory: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of *size*; skip the test if that is not allowed."""
    if os.getuid() or not shutil.which("mount"):
        pytest.skip("mounting a tmpfs needs root and mount(8)")
    directory.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", directory], capture_output=True)
    if done.returncode:
        pytest.skip(f"mount is not allowed here: {done.stderr.decode().strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


async def test_full_disk_takes_truncates_and_then_appends_again(tmp_path: Path) -> None:
    """On a full tmpfs appends are refused, truncate and delete work, and then appends work again."""
    with mounted(tmp_path / "small", "2m") as disk:
        async with MultiRecordLog.open(disk / "wal", segment_bytes=SEGMENT_BYTES) as log:
            await log.create_queue("q")
            await log.create_queue("r")
            last = None
            with pytest.raises(LogFullError) as full:
                while True:
                    last = await log.append_record("q", None, bytes(40_000))
            assert full.value.resource == "space" and last is not None
            (disk / "hog").write_bytes(b"")
            with contextlib.suppress(OSError), (disk / "hog").open("wb", buffering=0) as hog:
                while True:
                    hog.write(bytes(4_096))
            assert log.state is LogState.OPEN
            await log.truncate("q", last - 1)
            await log.delete_queue("r")
            (disk / "hog").unlink()
            for _ in range(20):
                await log.append_record("q", None, bytes(10_000))
        async with MultiRecordLog.open(disk / "wal", segment_bytes=SEGMENT_BYTES) as log:
            assert log.next_position("q") == last + 21 and log.list_queues() == ["q"]


async def test_append_that_the_file_system_never_has_room_for_is_refused(tmp_path: Path) -> None:
    """With on_full="wait", an append does not wait for space that no truncate can free, and blocks no other."""
    with mounted(tmp_path / "small", "4m") as disk:
        limits = Limits(on_full="wait")
        async with MultiRecordLog.open(disk / "wal", segment_bytes=SEGMENT_BYTES, limits=limits) as log:
            await log.create_queue("q")
            made = [log.append_record("q", None, bytes(size)) for size in (10, 5_000_000, 10)]
            answers = await asyncio.gather(*made, return_exceptions=True)
            assert isinstance(answers[1], RecordTooLargeError) and answers[1].limit == "the file system"
            assert [answers[0], answers[2]] == [0, 1]


async def test_disk_remounted_read_only_is_refused_to_writers_and_open_to_readers(tmp_path: Path) -> None:
    """On a read-only file system, opening raises a plain OSError, and a reader sees everything."""
    with mounted(tmp_path / "small", "8m") as disk:
        log = await MultiRecordLog.open(disk / "wal", segment_bytes=SEGMENT_BYTES)
        await log.create_queue("q")
        await log.append_record("q", None, b"kept")
        await log.close()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(OSError):
            await MultiRecordLog.open(disk / "wal")
        reader = await asyncio.to_thread(ReadOnlyLog.open, disk / "wal")
        assert [payload for _, payload in reader.range("q")] == [b"kept"]


def test_directory_without_permission_is_refused_as_what_it_is(directory: Path) -> None:
    """In another user's directory, opening raises PermissionError and creates and changes nothing."""
    if os.getuid():
        pytest.skip("becoming another user needs root")
    directory.mkdir(mode=0o700)
    for parent in directory.parents[:3]:
        parent.chmod(0o755)
    out = run(
        """
        os.setuid(65534)
        async def main():
            try:
                await open_log()
            except PermissionError as error:
                print("refused")
        asyncio.run(main())
        """,
        directory,
    )
    assert out.split() == ["refused"]
    assert list(directory.iterdir()) == []


async def test_file_in_the_directorys_place_is_refused(directory: Path) -> None:
    """If the path is a file, opening raises a plain OSError and does not change the file."""
    directory.write_bytes(b"mine")
    with pytest.raises(OSError):
        await MultiRecordLog.open(directory)
    assert directory.read_bytes() == b"mine"


async def test_cancel_storm_leaves_no_hole_and_no_hanging_call(directory: Path) -> None:
    """When hundreds of callers cancel at any moment, the others complete, without gaps and without partial calls."""
    chance = random.Random(3)
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await log.create_queue("q")
        tasks = []
        for number in range(600):
            payloads = [b"%d" % number] * chance.choice([1, 1, 3])
            tasks.append(asyncio.create_task(log.append_records("q", None, payloads)))
            if chance.random() < 0.5:
                await asyncio.sleep(0)
            if chance.random() < 0.4:
                tasks[chance.randrange(len(tasks))].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert any(isinstance(answer, asyncio.CancelledError) for answer in answers)
        stored = [payload for _, payload in log.range("q")]
        assert log.next_position("q") == len(stored)
        for number, answer in enumerate(answers):
            if isinstance(answer, int):
                assert stored[answer] == b"%d" % number
            assert isinstance(answer, int | asyncio.CancelledError)
    assert await records(directory) == stored


def test_loop_that_ends_without_close_leaves_the_log_as_answered(directory: Path) -> None:
    """The process ends without a warning, its lock is released, and the next one finds everything acknowledged."""
    run(
        """
        async def main():
            log = await open_log()
            await log.create_queue("q")
            await log.append_record("q", None, b"one")
            asyncio.create_task(log.append_record("q", None, b"two"))
            asyncio.create_task(log.append_record("q", None, bytes(100_000)))
            await asyncio.sleep(0)
        asyncio.run(main())
        async def again():
            while True:
                try:
                    async with open_log() as log:
                        assert next(iter(log.range("q"))).payload == b"one"
                        return
                except LogLockedError:
                    await asyncio.sleep(0)  # the thread of the first one is finishing
        asyncio.run(again())
        """,
        directory,
    )
    assert asyncio.run(records(directory))[0] == b"one"


async def test_close_with_calls_on_their_way_ends_each_of_them(directory: Path) -> None:
    """Close drains: every call is acknowledged and stored, or refused and absent. A second close joins the first."""
    log = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES)
    await log.create_queue("q")
    calls = [asyncio.create_task(log.append_record("q", None, b"%d" % number)) for number in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(log.close(), log.close())
    answers = await asyncio.gather(*calls, return_exceptions=True)
    stored = await records(directory)
    for number, answer in enumerate(answers):
        assert isinstance(answer, int | LogClosedError)
        assert (b"%d" % number in stored) == isinstance(answer, int)
    with pytest.raises(LogClosedError):
        await log.append_record("q", None, b"late")


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError("a bug"), KeyError("oops")], ids=repr)
async def test_writer_thread_that_raises_tells_everyone(
    directory: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error in the thread gives every waiting and later call LogFailedError with the cause; reads still work."""
    async with MultiRecordLog.open(directory, filesystem=CachedFiles()) as log:  # each batch is a job
        await log.create_queue("q")
        await log.append_record("q", None, b"kept")

        def commit(self: Journal, order: object) -> None:
            raise error

        monkeypatch.setattr(Journal, "commit", commit)
        answers = await asyncio.gather(
            *(log.append_record("q", None, b"lost") for _ in range(5)), log.truncate("q", 0), return_exceptions=True
        )
        assert all(isinstance(answer, LogFailedError) and answer.__cause__ is error for answer in answers)
        with pytest.raises(LogFailedError):
            await log.append_record("q", None, b"late")
        assert log.state is LogState.FAILED and log.inspection.failure is error
        assert [payload for _, payload in log.range("q")] == [b"kept"]
        monkeypatch.undo()
    assert await records(directory) == [b"kept"]


async def test_cancelled_open_gives_lock_and_descriptors_back(directory: Path) -> None:
    """A cancelled open releases the lock and its descriptors, so that the next open succeeds."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
    for turns in range(6):
        opening = asyncio.ensure_future(_opened(directory))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        with contextlib.suppress(
            asyncio.CancelledError, LogLockedError
        ):  # locked: by the open that was cancelled before
            await (await opening).close()
    while True:
        try:
            async with MultiRecordLog.open(directory) as log:
                assert log.list_queues() == ["q"]
            break
        except LogLockedError:
            await asyncio.sleep(0)  # the thread of the last cancelled open is still releasing it
    async with asyncio.timeout(60):
        while os.path.isdir("/proc/self/fd") and open_files(directory):
            await asyncio.sleep(0.001)  # so may the one before it


async def _opened(directory: Path) -> MultiRecordLog:
    return await MultiRecordLog.open(directory)


async def test_policy_interval_syncs_by_its_own_timer(directory: Path) -> None:
    """Under `interval` an idle log is synced without another call."""
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.interval(0.01)) as log:
        await log.create_queue("q")
        before = log.stats().syncs
        await log.append_record("q", None, b"x")
        while log.stats().syncs == before:
            await asyncio.sleep(0.005)
        assert log._engine.opened.journal.all_synced
