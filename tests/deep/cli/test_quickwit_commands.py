"""Moving logs to and from the Rust crate."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrecordlog_async import ReadOnlyLog
from mrecordlog_async.cli.commands import export_quickwit
from mrecordlog_async.cli.commands.export_quickwit import export
from mrecordlog_async.cli.commands.import_quickwit import build as build_log
from mrecordlog_async.cli.commands.import_quickwit import queues_of
from mrecordlog_async.cli.main import main
from mrecordlog_async.maintenance import stored_log
from mrecordlog_async.maintenance.stored_log import StoredLog
from mrecordlog_async.quickwit.frame import BLOCK_BYTES
from mrecordlog_async.quickwit.reader import read
from mrecordlog_async.quickwit.writer import CrateWriter
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests.cli.carried import all_settings
from tests.cli.running import build, mrecordlog, open_then_truncate, over_several_segments, three_queues
from tests.conftest import contents
from tests.deep.quickwit.test_writer import CALLS, Kept, do, seen
from tests.quickwit.golden_cases import golden_bytes
from tests.quickwit.memory import Memory


def crate_directory(path: Path, name: str) -> Path:
    path.mkdir()
    file = path / "wal-00000000000000000000"
    file.write_bytes(golden_bytes(name))
    with file.open("r+b") as opened:
        opened.truncate(134_217_728)
    return path


def test_a_directory_of_the_crate_becomes_a_log(tmp_path: Path) -> None:
    """Queues, positions, gaps and payloads are imported."""
    source = crate_directory(tmp_path / "crate", "08_position_skip")
    ran = mrecordlog("import-quickwit", source, tmp_path / "wal")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"imported 2 queues, 9 records into {tmp_path / 'wal'}\n"
    with ReadOnlyLog.open(tmp_path / "wal") as log:
        queues = contents(log)
    assert queues["q"][:2] == (5, 24)
    assert [position for position, _ in queues["q"][2]] == [5, 10, 20, 21, 22, 23]
    assert queues["r"][2][-1] == (1_000_000_000_001, b"after")


def test_an_empty_name_must_be_given_another(tmp_path: Path) -> None:
    """The crate allows an empty queue name. Here the queue needs a name, and nothing is created without one."""
    source = crate_directory(tmp_path / "crate", "13_queue_names")
    ran = mrecordlog("import-quickwit", source, tmp_path / "wal")
    assert ran.code == 2
    assert "--empty-name" in ran.err
    assert not (tmp_path / "wal").exists()
    assert mrecordlog("import-quickwit", source, tmp_path / "wal", "--empty-name", "nameless").code == 0
    with ReadOnlyLog.open(tmp_path / "wal") as log:
        assert [payload for _, payload in log.range("nameless")] == [b"payload5"]


def test_a_torn_tail_is_named_and_is_no_failure(tmp_path: Path) -> None:
    """A crash leaves a torn tail, which was never acknowledged."""
    source = crate_directory(tmp_path / "crate", "20_torn_payload")
    ran = mrecordlog("import-quickwit", source, tmp_path / "wal")
    assert ran.code == 0
    assert ran.out.startswith("torn tail: wal-00000000000000000000 at offset 784, 90 B: a frame fails its checksum\n")


@pytest.mark.parametrize("name", ["30_corrupt_payload_byte", "35_zero_hole"])
def test_damage_stops_the_import_until_it_is_accepted(tmp_path: Path, name: str) -> None:
    """If there is damage, nothing is created without --accept-damage."""
    source = crate_directory(tmp_path / "crate", name)
    ran = mrecordlog("import-quickwit", source, tmp_path / "wal")
    assert ran.code == 3
    assert ran.out.startswith("damage: wal-00000000000000000000 at offset 4")
    assert not (tmp_path / "wal").exists()
    ran = mrecordlog("import-quickwit", source, tmp_path / "wal", "--accept-damage", "--json")
    facts = json.loads(ran.out)
    assert (ran.code, facts["imported"], facts["queues"]) == (0, True, 1)
    assert facts["findings"][0]["torn"] is False


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk's error names none."""
    source = crate_directory(tmp_path / "crate", "02_small_records")

    def read(files: OsFileSystem, handle: int, length: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(OsFileSystem, "read", read)
    assert main(["import-quickwit", str(source), str(tmp_path / "wal")]) == 1
    assert capsys.readouterr().err == f"mrecordlog: {source}/wal-00000000000000000000: Input/output error\n"


def test_an_existing_log_is_left_alone(tmp_path: Path) -> None:
    """Importing into a directory that is not empty is refused as wrong usage."""
    source = crate_directory(tmp_path / "crate", "02_small_records")
    build(tmp_path / "wal", three_queues)
    ran = mrecordlog("import-quickwit", source, tmp_path / "wal")
    assert (ran.code, "is not empty" in ran.err) == (2, True)


def test_no_directory_and_no_files_of_the_crate_fail(tmp_path: Path) -> None:
    """Whatever is missing is reported by name."""
    assert str(tmp_path / "nowhere") in mrecordlog("import-quickwit", tmp_path / "nowhere", tmp_path / "wal").err
    ran = mrecordlog("import-quickwit", tmp_path, tmp_path / "wal")
    assert (ran.code, str(tmp_path) in ran.err) == (1, True)


def test_a_log_becomes_a_directory_of_the_crate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Truncated and empty queues keep their positions; the file is as long as the crate makes it."""
    build(tmp_path / "wal", three_queues)
    assert main(["export-quickwit", str(tmp_path / "wal"), str(tmp_path / "crate")]) == 0
    assert capsys.readouterr().out == f"exported 3 queues, 11 records to {tmp_path / 'crate'}\n"
    (file,) = (tmp_path / "crate").iterdir()
    assert (file.name, file.stat().st_size) == ("wal-00000000000000000000", 134_217_728)
    report = read(Memory({0: file.read_bytes()}))
    assert report.findings == []
    assert {name: (queue.first_position, queue.next_position) for name, queue in report.state.queues.items()} == {
        "audit": (0, 1),
        "orders": (30, 40),
        "idle": (42, 42),
    }


def test_an_export_names_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The crate has no options, seals or consumers: each queue that has some is a line, and so is each rule."""
    build(tmp_path / "wal", all_settings)
    assert main(["export-quickwit", str(tmp_path / "wal"), str(tmp_path / "crate")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == [
        "left out: full: at most 400 B, at most 4 records, at most 86400.5 s old",
        "left out: job-1: sealed, consumer lake at 1",
    ]
    assert lines[-1] == "left out: rule job-*: consumer lake"
    assert len(lines) == 8  # nothing about the queue that has no settings
    assert main(["export-quickwit", str(tmp_path / "wal"), str(tmp_path / "again"), "--json"]) == 0
    left_out = json.loads(capsys.readouterr().out)["left_out"]
    assert left_out["settings"]["kept"]["consumers"] == {"mailer": 2, "späte": 4}
    assert left_out["rules"] == [{"pattern": "job-*", "consumer": "lake"}]


def test_a_queue_that_is_truncated_while_it_is_exported_keeps_its_next_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with dump: the log may be in use, and the crate assigns none of the queue's positions again."""
    source = build(tmp_path / "wal", over_several_segments)

    monkeypatch.setattr(stored_log, "GROUP_BYTES", 1)  # each queue is read alone, as one with many bytes is
    monkeypatch.setattr(export_quickwit, "open_log", open_then_truncate)
    assert main(["export-quickwit", str(source), str(tmp_path / "crate")]) == 0
    (file,) = (tmp_path / "crate").iterdir()
    queues = read(Memory({0: file.read_bytes()})).state.queues
    assert (queues["q"].first_position, queues["q"].next_position) == (20, 20)
    assert queues["later"].next_position == 20


def test_an_export_exists_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The crate opens a directory with only some of the queues, and reports nothing."""
    build(tmp_path / "wal", three_queues)
    append = CrateWriter.append

    def fail(writer: CrateWriter, queue: str, position: int | None, payloads: Sequence[bytes]) -> int | None:
        if queue == "orders":
            assert sorted(os.listdir(tmp_path)) == ["crate.partial", "wal"]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return append(writer, queue, position, payloads)

    with monkeypatch.context() as patched:
        patched.setattr(CrateWriter, "append", fail)
        assert main(["export-quickwit", str(tmp_path / "wal"), str(tmp_path / "crate")]) == 1
    assert "No space left" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["wal"]


@settings(max_examples=25, deadline=None)
@given(st.lists(CALLS, max_size=25), st.integers(1, 4))
def test_there_and_back_again(calls: list[tuple[object, ...]], blocks: int) -> None:
    """Any directory of the crate, imported and exported, shows the same queues, positions and payloads."""
    files = Memory()
    writer = CrateWriter(files, file_bytes=blocks * BLOCK_BYTES)
    kept: Kept = {}
    for call in calls:
        do(writer, call, kept)
    due = seen(files)
    if "" in due:
        due["no name"] = due.pop("")

    async def through(directory: str) -> Memory:
        queues = queues_of(read(files), "no name")
        await build_log(directory, files, queues, segment_bytes=BLOCK_BYTES)
        exported = Memory()
        with StoredLog.open(directory) as log:
            export(log, CrateWriter(exported, file_bytes=BLOCK_BYTES))
        return exported

    with tempfile.TemporaryDirectory() as directory:
        back = asyncio.run(through(f"{directory}/wal"))
    assert seen(back) == due
    assert read(back).findings == []
