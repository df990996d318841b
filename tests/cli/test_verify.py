"""verify prints the numbers of an intact log, and every damaged place of a damaged one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrecordlog_async.cli.main import main
from tests import damage
from tests.cli.running import build, mrecordlog, three_queues


def test_a_healthy_log_is_fine(tmp_path: Path) -> None:
    """Everything is counted, and the reading speed is reported."""
    ran = mrecordlog("verify", build(tmp_path / "wal", three_queues))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("OK: 4 segments, 46 batches, 41 records of 390.6 KiB\nread ")
    assert "iB/s)" in ran.out


def test_all_damage_is_listed_not_only_the_first(tmp_path: Path) -> None:
    """Reading stops at the first place, but every place is shown."""
    directory = build(tmp_path / "wal", three_queues)
    for path in damage.segments(directory)[:2]:
        damage.flip_byte(path, 20_000)
    ran = mrecordlog("verify", directory)
    assert ran.code == 3
    assert [line.split()[1] for line in ran.out.splitlines() if line.startswith("damage: ")] == [
        path.name for path in damage.segments(directory)[:2]
    ]
    assert "open refuses this log and changes nothing" in ran.out


def test_segments_that_were_exchanged_are_damage_of_both(tmp_path: Path) -> None:
    """A restored file may get the name of another one. Each is listed, and all other records are repaired."""
    directory = build(tmp_path / "wal", three_queues)
    first, _, _, last = damage.segments(directory)
    first.rename(directory / "aside")
    last.rename(first)
    (directory / "aside").rename(last)
    ran = mrecordlog("verify", directory)
    assert (ran.code, ran.err) == (3, "")
    assert f"damage: {first.name} at offset 0, 64 B: the file holds segment 3\n" in ran.out
    assert f"damage: {last.name} at offset 0, 64 B: the file holds segment 0\n" in ran.out
    repaired = mrecordlog("repair", directory, "--apply")
    assert (repaired.code, repaired.err) == (0, "")
    assert mrecordlog("verify", f"{directory}.repaired").code == 0


@pytest.mark.parametrize("command", ["verify", "repair", "ls", "snapshot", "dump"])
def test_files_that_only_look_like_segments_are_left_alone(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names with a number too large for a header, or with digits of another script, are ignored."""
    directory = build(tmp_path / "wal", three_queues)
    (directory / ("wal-" + "9" * 20)).write_bytes(b"mine")
    (directory / ("wal-" + "\u0663" * 20)).write_bytes(b"mine")
    target = [str(tmp_path / "copy")] if command == "snapshot" else []
    assert main([command, str(directory), *target]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", ["directory", "link"])
@pytest.mark.parametrize("command", ["verify", "repair", "ls", "snapshot", "dump"])
def test_what_has_the_name_of_a_segment_and_is_no_file_is_named(
    tmp_path: Path, command: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says which path, what it is, and what to do."""
    directory = build(tmp_path / "wal", three_queues)
    stray = directory / f"wal-{99:020}"
    if kind == "directory":
        stray.mkdir()
    else:
        stray.symlink_to(tmp_path / "nowhere")
    target = [str(tmp_path / "copy")] if command == "snapshot" else []
    assert main([command, str(directory), *target]) == 1
    said = capsys.readouterr().err
    assert str(stray) in said
    assert "has the name of a segment" in said
    assert "move" in said
    assert not (tmp_path / "copy.partial").exists()
