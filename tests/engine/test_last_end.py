"""How the last opening ended is stated by the next one, whatever became of the process in between."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from mrecordlog_async import LogFailedError, MultiRecordLog, PersistPolicy
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.model import LastEnd, RecoveryReport
from mrecordlog_async.storage import os_filesystem
from mrecordlog_async.storage.end_note import LAST_END_BYTES_MAX, EndNote, decode_end_note
from tests.cached_files import CachedFiles

CAUSE = "the medium was removed"


class Failing(CachedFiles):
    """A disk whose syncs fail while the test says so."""

    failing = False

    def sync(self, handle: int) -> None:
        if self.failing:
            raise OSError(errno.EIO, CAUSE)
        super().sync(handle)


async def report_of(directory: Path) -> RecoveryReport:
    """Open the log, close it, and return what the opening reported."""
    async with MultiRecordLog.open(directory) as log:
        return log.recovery_report


async def killed(directory: Path) -> RecoveryReport:
    """Open the log, and leave the files that a killed process leaves; return what the opening reported."""
    kept = directory.with_name("kept")
    async with MultiRecordLog.open(directory, queues=["q"]) as log:
        await log.append("q", b"a")
        shutil.copytree(directory, kept, ignore=shutil.ignore_patterns("LOCK"))
        report = log.recovery_report
    shutil.rmtree(directory)
    kept.rename(directory)
    return report


async def fail(directory: Path, disk: Failing | None = None) -> RecoveryReport:
    """Open the log, have it fail, close it; return what the opening reported."""
    disk = disk or Failing()
    log = await MultiRecordLog.open(directory, filesystem=disk, queues=["q"])
    disk.failing = True
    with pytest.raises(LogFailedError):
        await log.append("q", b"a")
    await written(directory)
    await log.close()
    return log.recovery_report


async def written(directory: Path) -> None:
    """Wait until the failure is noted: nobody else does."""
    while CAUSE not in (directory / "LAST_END").read_text() if (directory / "LAST_END").exists() else True:
        await asyncio.sleep(0.001)


def ends(report: RecoveryReport) -> tuple[LastEnd, int]:
    return report.last_end, report.unclosed_ends


async def test_each_opening_states_how_the_one_before_it_ended(tmp_path: Path) -> None:
    """Closed, killed or failed; and how often it was not closed."""
    log = tmp_path / "wal"
    assert ends(await report_of(log)) == (LastEnd.NEW, 0)
    assert ends(await killed(log)) == (LastEnd.CLOSED, 0)
    assert ends(await fail(log)) == (LastEnd.UNCLOSED, 1)
    report = await killed(log)
    assert ends(report) == (LastEnd.FAILED, 2)
    assert CAUSE in report.last_failure
    assert ends(await report_of(log)) == (LastEnd.UNCLOSED, 3)
    assert ends(await report_of(log)) == (LastEnd.CLOSED, 3)


async def test_a_failure_is_reported_once(tmp_path: Path) -> None:
    """A process that is killed later did not fail of the same cause."""
    log = tmp_path / "wal"
    await fail(log)
    assert CAUSE in (await killed(log)).last_failure
    report = await report_of(log)
    assert (report.last_end, report.last_failure) == (LastEnd.UNCLOSED, "")


async def test_the_next_start_logs_why_the_log_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The line stands where an operator looks after a restart."""
    await fail(tmp_path / "wal")
    caplog.clear()
    await report_of(tmp_path / "wal")
    (line,) = [one.getMessage() for one in caplog.records if "before this start" in one.getMessage()]
    assert CAUSE in line


async def test_a_note_never_delays_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk that fails may hang at the next call: the log closes although the note is never written."""
    directory = tmp_path / "wal"
    disk, answers, note = Failing(), threading.Event(), os_filesystem._note
    monkeypatch.setattr(os_filesystem, "_note", lambda *arguments: answers.wait() and note(*arguments))
    log = await MultiRecordLog.open(directory, filesystem=disk, queues=["q"])
    disk.failing = True
    with pytest.raises(LogFailedError):
        await log.append("q", b"a")
    await log.close()
    assert not (directory / "CLOSED").exists()
    assert not (directory / "LAST_END").exists()
    answers.set()
    await written(directory)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\0", b"unclosed ends: -3\n", b"unclosed ends: 9" * 1_000, b"x\n" * 10]
)
async def test_what_stands_in_the_note_changes_nothing_else(content: bytes, tmp_path: Path) -> None:
    """It is for people: whatever it contains, the log opens, and only a missing CLOSED says that it was not closed."""
    directory = tmp_path / "wal"
    await killed(directory)
    (directory / "LAST_END").write_bytes(content)
    report = await report_of(directory)
    assert ends(report) == (LastEnd.UNCLOSED, 1)


async def test_something_else_of_its_name_is_left_alone(tmp_path: Path) -> None:
    """A directory, a link or a pipe is neither read nor replaced, and nobody waits for it."""
    (tmp_path / "elsewhere").write_text("mine")
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to(tmp_path / "elsewhere")):
        directory = tmp_path / "wal"
        await killed(directory)
        note = directory / "LAST_END"
        make(note)
        kind = stat.S_IFMT(note.lstat().st_mode)
        assert ends(await report_of(directory)) == (LastEnd.UNCLOSED, 1)
        assert stat.S_IFMT(note.lstat().st_mode) == kind
        assert (tmp_path / "elsewhere").read_text() == "mine"
        shutil.rmtree(directory)


async def test_a_note_changes_no_file_with_another_name(tmp_path: Path) -> None:
    """Root repairs the logs of others: the name may be a hard link to a file that only root may write."""
    (tmp_path / "elsewhere").write_text("mine")
    directory = tmp_path / "wal"
    await killed(directory)
    os.link(tmp_path / "elsewhere", directory / "LAST_END")
    assert ends(await report_of(directory)) == (LastEnd.UNCLOSED, 1)
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert decode_end_note((directory / "LAST_END").read_bytes()) == EndNote(1)


async def test_a_new_log_has_no_past(tmp_path: Path) -> None:
    """A log whose segments were removed leaves its note; the new one in its directory does not have its ends."""
    directory = tmp_path / "wal"
    await fail(directory)
    for file in [*directory.glob("wal-*"), *directory.glob("CLOSED*"), directory / "LOCK"]:
        file.unlink()
    assert ends(await killed(directory)) == (LastEnd.NEW, 0)
    assert ends(await report_of(directory)) == (LastEnd.UNCLOSED, 1)


async def test_a_snapshot_has_no_note(tmp_path: Path) -> None:
    """It is a new log, and was never left unclosed."""
    await fail(tmp_path / "wal")
    await asyncio.to_thread(snapshot, tmp_path / "wal", tmp_path / "copy")
    assert not (tmp_path / "copy" / "LAST_END").exists()
    assert ends(await report_of(tmp_path / "copy")) == (LastEnd.CLOSED, 0)


async def test_a_tool_leaves_the_report_to_the_service(tmp_path: Path) -> None:
    """Under a weak policy a tool leaves a log unclosed as it found it: the service still learns of the failure."""
    directory = tmp_path / "wal"
    await fail(directory)
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.always()) as log:
        log.inspection.keep_unclosed()
        assert log.recovery_report.last_end is LastEnd.FAILED
    report = await report_of(directory)
    assert ends(report) == (LastEnd.FAILED, 1)
    assert CAUSE in report.last_failure


def test_a_note_is_read_as_it_was_written() -> None:
    """A cause of several lines becomes one, and a long one is cut."""
    assert decode_end_note(EndNote(3, "a\nb").encode()) == EndNote(3, "a b")
    long = EndNote(1, "ä" * 5_000).encode()
    assert len(long) <= LAST_END_BYTES_MAX and decode_end_note(long).failure.startswith("ää")
