"""The golden cases: the same calls write the same bytes, and the same bytes show the same content."""

from __future__ import annotations

import pytest

from mrecordlog_async.quickwit.reader import read
from tests.quickwit.golden_cases import GOLDEN, NAMES, Replay, dump, golden_bytes, golden_dump, golden_files


@pytest.mark.parametrize("name", NAMES)
def test_the_same_calls_leave_the_same_bytes(name: str) -> None:
    """The writer writes the same bytes as the crate, and each call returns the same result."""
    lines = (GOLDEN / f"{name}.ops.txt").read_text().splitlines()
    replay = Replay()
    replay.run(iter(lines))
    assert replay.files.contents[0].rstrip(b"\0") == golden_bytes(name).rstrip(b"\0")
    assert replay.answers == [line.removeprefix("#= ") for line in lines if line.startswith("#= ")]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bytes_show_the_same_content(name: str) -> None:
    """The reader finds what the crate finds: queues, positions, every record, and as many warnings."""
    assert dump(golden_files(name)) == golden_dump(name)


def test_a_torn_tail_is_no_damage() -> None:
    """A record cut short by a crash was never acknowledged."""
    report = read(golden_files("20_torn_payload"))
    assert [(finding.offset, finding.torn) for finding in report.findings] == [(784, True)]
    assert report.damage == []


def test_a_flipped_byte_is_damage_with_its_place() -> None:
    """A record skipped in the middle is named by file, offset and size."""
    (finding,) = read(golden_files("30_corrupt_payload_byte")).damage
    assert (finding.file, finding.bytes, finding.silent) == ("wal-00000000000000000000", 231, False)
    assert finding.offset <= 43_099 < finding.offset + finding.bytes


def test_records_behind_a_hole_are_counted_though_the_crate_says_nothing() -> None:
    """The crate ends without a warning; the records after the hole are found: 600 in all, 186 before it, one in it."""
    (finding,) = read(golden_files("35_zero_hole")).damage
    assert (finding.offset, finding.silent) == (43_223, True)
    assert finding.hidden_frames >= 600 - 186 - 1
