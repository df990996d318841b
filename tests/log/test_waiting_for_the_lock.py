"""`open(lock_seconds=…)`: a directory that another process has open is waited for."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import (
    LogLockedError,
    MultiRecordLog,
    RecoveryProgress,
)
from tests.holder import HELD, Holder

FOREVER = 1e6
"""More seconds than a test may take: what ends earlier does not wait for them."""


async def waiting(directory: Path | str, **options: Any) -> asyncio.Task[MultiRecordLog]:
    """Return the opening of *directory* once it waits for the lock."""
    waits = asyncio.Event()

    def note(progress: RecoveryProgress) -> None:
        if progress.waits_for:
            waits.set()

    async def opening() -> MultiRecordLog:
        return await MultiRecordLog.open(directory, lock_seconds=FOREVER, on_progress=note, **options)

    task = asyncio.create_task(opening())
    noted = asyncio.create_task(waits.wait())
    await asyncio.wait((task, noted), return_when=asyncio.FIRST_COMPLETED)
    noted.cancel()
    assert not task.done(), task
    return task


async def contents(log: MultiRecordLog) -> list[bytes]:
    """Return the records of the queue "q", and close the log."""
    async with log:
        return [bytes(payload) for _, payload in log.range("q")]


async def test_opening_waits_until_the_other_process_closes_the_log(directory: Path) -> None:
    """What the other process has stored by then is there."""
    with Holder(directory) as holder:
        opening = await waiting(directory)
        holder.close()
        assert await contents(await opening) == [HELD]


async def test_opening_waits_until_the_other_process_is_killed(directory: Path) -> None:
    """The lock ends with its process, and what was acknowledged stays."""
    with Holder(directory) as holder:
        opening = await waiting(directory)
        holder.process.kill()
        assert await contents(await opening) == [HELD]


async def test_it_says_at_once_whom_it_waits_for(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By process and command, with the time; and again when it has the log."""
    with Holder(directory) as holder, caplog.at_level(logging.INFO, "mrecordlog_async"):
        opening = await waiting(directory)
        (said,) = (record for record in caplog.records if "waiting" in record.getMessage())
        assert said.levelno == logging.WARNING
        assert f"{str(directory)!r} is in use by process {holder.pid} (" in said.getMessage()
        assert f"{sys.executable} -c" in said.getMessage()
        assert "for up to 1e+06 s" in said.getMessage()
        holder.close()
        await (await opening).close()
    assert any("released" in record.getMessage() for record in caplog.records)


async def test_the_progress_names_the_process(directory: Path) -> None:
    """For applications that show it: nothing is read yet."""
    seen: list[RecoveryProgress] = []
    with Holder(directory) as holder:
        with pytest.raises(LogLockedError):
            await MultiRecordLog.open(directory, lock_seconds=0.01, on_progress=seen.append)
        assert [(one.waits_for, one.fraction) for one in seen] == [(f"process {holder.pid}", 0.0)]


async def test_the_wait_has_an_end(directory: Path) -> None:
    """Then the error names the process, as without a wait; the process goes on."""
    with Holder(directory) as holder:
        with pytest.raises(LogLockedError) as refused:
            await MultiRecordLog.open(directory, lock_seconds=0.2)
        assert (refused.value.owner_pid, refused.value.is_own) == (holder.pid, False)
        assert holder.process.poll() is None


async def test_by_default_nothing_is_waited_for(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Commands and scripts are refused at once."""
    with Holder(directory), pytest.raises(LogLockedError):
        await MultiRecordLog.open(directory)
    assert "waiting" not in caplog.text


async def test_a_log_of_this_process_is_not_waited_for(log: MultiRecordLog, directory: Path) -> None:
    """The caller would wait for itself."""
    with pytest.raises(LogLockedError, match="is open in this process already") as refused:
        await MultiRecordLog.open(directory, lock_seconds=FOREVER)
    assert refused.value.is_own


async def test_a_copy_of_links_of_a_log_of_this_process_is_not_waited_for(
    log: MultiRecordLog, directory: Path, tmp_path: Path
) -> None:
    """Its LOCK is the same file under another name."""
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy, copy_function=os.link)
    with pytest.raises(LogLockedError, match="hard link") as refused:
        await MultiRecordLog.open(copy, lock_seconds=FOREVER)
    assert refused.value.is_own


async def test_a_forked_child_waits_for_its_parent(directory: Path) -> None:
    """The parent's log is not one of the child's process."""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", FORKING, str(directory)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "[b'of the parent']\n"), done.stderr


FORKING = """
import asyncio, os, sys, warnings
from mrecordlog_async import MultiRecordLog
warnings.simplefilter("ignore", DeprecationWarning)  # a fork while a thread runs is what is tested here

async def opened(**options):
    return await MultiRecordLog.open(sys.argv[1], queues=["q"], **options)

async def child():
    log = await opened(lock_seconds=1e6, on_progress=lambda progress: os.write(tells, b"."))
    print([bytes(payload) for _, payload in log.range("q")], flush=True)
    await log.close()

hears, tells = os.pipe()
loop = asyncio.new_event_loop()
log = loop.run_until_complete(opened())
loop.run_until_complete(log.append("q", b"of the parent"))
number = os.fork()
if number:
    os.read(hears, 1)
    loop.run_until_complete(log.close())
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]))
asyncio.run(child())
os._exit(0)
"""


async def test_the_event_loop_runs_while_a_lock_is_waited_for(directory: Path) -> None:
    """Other tasks get their turns: none of the wait blocks."""
    with Holder(directory) as holder:
        opening = await waiting(directory)
        loop = asyncio.get_running_loop()
        for _ in range(5):
            before = loop.time()
            await asyncio.sleep(0)
            assert loop.time() - before < 60
        assert not opening.done()
        async with MultiRecordLog.open(directory.with_name("other"), queues=["q"]) as other:
            assert await other.append("q", b"meanwhile") == 0
        holder.close()
        await (await opening).close()


async def test_a_cancelled_wait_ends_at_once_and_holds_nothing(directory: Path) -> None:
    """The directory stays the other process's; once that has ended it can be opened."""
    with Holder(directory) as holder:
        opening = await waiting(directory)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert holder.process.poll() is None
        holder.close()
        await asyncio.to_thread(holder.process.wait)
        assert await contents(await MultiRecordLog.open(directory)) == [HELD]


async def test_a_wait_with_a_timeout_around_it_ends_with_that(directory: Path) -> None:
    """`asyncio.timeout` works as around any call."""
    with Holder(directory), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await MultiRecordLog.open(directory, lock_seconds=FOREVER)


async def test_several_that_wait_get_the_log_one_after_the_other(directory: Path) -> None:
    """Those of one process too: once one has the log, it is this process's, and the others are refused."""
    with Holder(directory) as holder:
        openings = [await waiting(directory) for _ in range(3)]
        holder.close()
        results = await asyncio.gather(*openings, return_exceptions=True)
    logs = [one for one in results if isinstance(one, MultiRecordLog)]
    refused = [one for one in results if isinstance(one, LogLockedError)]
    assert (len(logs), len(refused)) == (1, 2)
    assert all(error.is_own for error in refused)
    assert await contents(logs[0]) == [HELD]


# The directory is not the same after the wait.


async def test_a_directory_that_was_replaced_meanwhile_is_the_one_that_opens(directory: Path) -> None:
    """The path decides, not the lock that was waited for."""
    async with MultiRecordLog.open(directory.with_name("new"), queues=["q"]) as other:
        await other.append("q", b"of the new one")
    with Holder(directory):
        opening = await waiting(directory)
        directory.rename(directory.with_name("old"))
        directory.with_name("new").rename(directory)
        assert await contents(await opening) == [b"of the new one"]


async def test_a_directory_that_was_removed_meanwhile_is_a_new_log(directory: Path) -> None:
    """As for an opening that begins now."""
    with Holder(directory):
        opening = await waiting(directory)
        for name in list(directory.iterdir()):
            name.unlink()
        directory.rmdir()
        log = await opening
        assert log.recovery_report.created
        await log.close()


async def test_a_directory_that_was_removed_meanwhile_is_not_created_against_the_caller(directory: Path) -> None:
    """With create=False there is no log any more."""
    with Holder(directory):
        opening = await waiting(directory, create=False)
        directory.rename(directory.with_name("moved"))
        with pytest.raises(FileNotFoundError, match="there is no log"):
            await opening


async def test_a_directory_with_other_files_meanwhile_is_refused(directory: Path) -> None:
    """No log is created next to them."""
    with Holder(directory):
        opening = await waiting(directory)
        directory.rename(directory.with_name("moved"))
        directory.mkdir()
        (directory / "notes.txt").write_text("mine")
        with pytest.raises(OSError, match=r"notes\.txt"):
            await opening
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]


async def test_a_lock_file_that_was_removed_meanwhile_holds_nobody_up(directory: Path) -> None:
    """The next one is locked; the process that held the old one fails instead of acknowledging what is not stored."""
    with Holder(directory):
        opening = await waiting(directory)
        (directory / "LOCK").unlink()
        assert await contents(await opening) == [HELD]


async def test_the_working_directory_may_change_meanwhile(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is that of the moment of the call."""
    monkeypatch.chdir(directory.parent)
    with Holder(directory) as holder:
        opening = await waiting(directory.name)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        holder.close()
        assert await contents(await opening) == [HELD]
    assert not list((tmp_path / "elsewhere").iterdir())


# What is passed.


@pytest.mark.parametrize("seconds", [True, "5", b"5", None, [1]])
def test_lock_seconds_is_a_number(directory: Path, seconds: Any) -> None:
    """A mistake is found where it is made, before anything is opened."""
    with pytest.raises(TypeError, match="lock_seconds must be a number of seconds"):
        MultiRecordLog.open(directory, lock_seconds=seconds)


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, -math.inf])
def test_lock_seconds_is_not_negative(directory: Path, seconds: float) -> None:
    """NaN compares with nothing, and would wait for ever."""
    with pytest.raises(ValueError, match="lock_seconds must be at least 0"):
        MultiRecordLog.open(directory, lock_seconds=seconds)


async def test_infinity_waits_until_it_is_cancelled(directory: Path) -> None:
    """A caller with its own deadline may pass it."""
    with Holder(directory), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await MultiRecordLog.open(directory, lock_seconds=math.inf)
