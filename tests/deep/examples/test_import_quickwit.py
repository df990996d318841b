"""`examples/import_quickwit.py` reads what Quickwit's Rust crate wrote, and reports what the crate passes over.

The golden cases are files that the crate wrote: `NAME.ops.txt` has its calls, `NAME.wal.gz` the file without its
trailing zeros, `NAME.dump.txt` the file's size and what the crate showed when it opened it.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrecordlog_async import CorruptionError, ReadOnlyLog
from tests.deep.examples.test_examples import EXAMPLES
from tests.programs import load_program

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.name.removesuffix(".ops.txt") for path in GOLDEN.glob("*.ops.txt"))
DAMAGED = ("30_corrupt_payload_byte", "35_zero_hole")
NEW_NAMES = {"": "nameless", "tab\tand\nnewline": "tab and newline"}

BLOCK_BYTES = 32_768
TRUNCATE, TOUCH, DELETE, APPEND = range(1, 5)
FRAME_BYTES = 7 + 12 + 12 + 100
CREATE_BYTES = 7 + 12


PROGRAM = load_program(EXAMPLES / "import_quickwit.py")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run(*words: object) -> Ran:
    """Run the program in this process."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = PROGRAM.main([*map(str, words)])
    return Ran(code, out.getvalue(), err.getvalue())


def crate_directory(path: Path, name: str) -> Path:
    """Return a directory that the crate wrote. Two blocks of the zeros after its data are as good as all."""
    path.mkdir()
    data = gzip.decompress((GOLDEN / f"{name}.wal.gz").read_bytes())
    (path / "wal-00000000000000000000").write_bytes(data + bytes(-len(data) % BLOCK_BYTES + 2 * BLOCK_BYTES))
    return path


def shown(directory: Path) -> list[str]:
    """Return the content of a log as the crate shows its own."""
    lines = []
    old = {new: name for name, new in NEW_NAMES.items()}
    with ReadOnlyLog.open(directory) as log:
        for new in sorted(log.list_queues(), key=lambda new: old.get(new, new)):
            name = quote(old.get(new, new), safe="-._~") or '""'
            first, following = log.first_position(new), log.next_position(new)
            records = list(log.range(new))
            last = following - 1 if following else "-"
            lines.append(f"queue {name} start={first} last={last} next={following} records={len(records)}")
            digest = size = 0
            for position, payload in records:
                crc = zlib.crc32(payload)
                size += len(payload)
                digest = zlib.crc32(position.to_bytes(8, "little") + crc.to_bytes(4, "little"), digest)
                payload_hex = f" hex={payload.hex()}" if len(payload) <= 64 else ""
                lines.append(f"rec {position} len={len(payload)} crc32={crc:08x}{payload_hex}")
            lines.append(f"end {name} bytes={size} digest={digest:08x}")
    return lines


@pytest.mark.parametrize("name", NAMES)
def test_the_log_holds_what_the_crate_shows(name: str, tmp_path: Path) -> None:
    """Queues, positions, gaps and every record; with --accept-damage also around damage, with as many warnings."""
    source = crate_directory(tmp_path / "crate", name)
    before = (source / "wal-00000000000000000000").stat()
    ran = run(source, tmp_path / "wal", "--accept-damage", "--rename", json.dumps(NEW_NAMES))
    assert (ran.code, ran.err) == (0, "")
    *findings, imported = ran.out.splitlines()
    assert imported.startswith("imported ")
    _, opened, warnings, queues, *expected = (GOLDEN / f"{name}.dump.txt").read_text().splitlines()
    assert opened == "open ok"
    assert warnings == f"warnings {sum('(the crate does not mention it)' not in finding for finding in findings)}"
    words = [line.split() for line in expected]
    expected = [" ".join(word for word in line if not word.startswith("file=")) for line in words]
    assert shown(tmp_path / "wal") == expected
    assert queues == f"queues {sum(line.startswith('queue') for line in expected)}"
    assert (source / "wal-00000000000000000000").stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_stops_the_import_until_it_is_accepted(name: str, tmp_path: Path) -> None:
    """The finding has its place; nothing is created."""
    ran = run(crate_directory(tmp_path / "crate", name), tmp_path / "wal")
    assert (ran.code, ran.err) == (3, "")
    assert ran.out.startswith("damage: wal-00000000000000000000 at offset 4")
    assert "nothing was imported" in ran.out
    assert os.listdir(tmp_path) == ["crate"]


def test_a_torn_tail_is_named_and_is_no_damage(tmp_path: Path) -> None:
    """A record that a crash cut short was never acknowledged. The file is as long as the crate makes it."""
    source = crate_directory(tmp_path / "crate", "20_torn_payload")
    os.truncate(source / "wal-00000000000000000000", 134_217_728)
    command = [sys.executable, str(EXAMPLES / "import_quickwit.py"), str(source), str(tmp_path / "wal")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("torn tail: wal-00000000000000000000 at offset 784, 90 bytes: a frame fails its check")


def test_records_after_a_hole_are_counted_though_the_crate_says_nothing(tmp_path: Path) -> None:
    """The crate ends without a warning; the records after the hole are found: 600 in all, 186 before it, one in it."""
    (finding,) = findings_in(crate_directory(tmp_path / "crate", "35_zero_hole"))
    assert (finding.offset, finding.silent, finding.torn) == (43_223, True, False)
    assert finding.hidden_frames >= 600 - 186 - 1


@pytest.mark.parametrize(
    ("rename", "sentence"),
    [
        ({}, "is empty; give it another name with --rename"),
        ({"": "e\u0301", "tab\tand\nnewline": "t"}, "two queues would be named"),
        ({"": "x"}, "contains control characters; remove them; give it another name with --rename"),
    ],
)
def test_a_name_that_no_new_queue_may_have_is_refused(rename: dict[str, str], sentence: str, tmp_path: Path) -> None:
    """Nothing is created: a rename gives each queue its own name."""
    ran = run(crate_directory(tmp_path / "crate", "13_queue_names"), tmp_path / "wal", "--rename", json.dumps(rename))
    assert (ran.code, sentence in ran.err, "Traceback" in ran.err) == (1, True, False)
    assert os.listdir(tmp_path) == ["crate"]


@pytest.mark.parametrize("taken", ["wal", "wal.partial"])
def test_what_exists_is_left_alone(taken: str, tmp_path: Path) -> None:
    """The program creates the log that it fills."""
    source = crate_directory(tmp_path / "crate", "02_small_records")
    (tmp_path / taken).mkdir()
    ran = run(source, tmp_path / "wal")
    assert (ran.code, f"{taken}'" in ran.err) == (1, True)
    assert sorted(os.listdir(tmp_path)) == ["crate", taken]


def test_no_files_of_the_crate_are_a_sentence(tmp_path: Path) -> None:
    """Whatever is missing is named; a directory without files of the crate is not an empty log."""
    assert str(tmp_path / "nowhere") in run(tmp_path / "nowhere", tmp_path / "wal").err
    for name in ("wal-7", "LOCK", "wal-99999999999999999999", "wal-0000000000000000000x"):
        (tmp_path / name).touch()
    assert f"{tmp_path}: there is no file called wal- and 20 digits" in run(tmp_path, tmp_path / "wal").err


# Damage made by hand.


def encoded(kind: int, queue: str, position: int, items: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """Return the bytes of one record."""
    name = queue.encode()
    parts = [struct.pack("<BQH", kind, position, len(name)), name]
    for at, payload in items:
        parts += [struct.pack("<QI", at, len(payload)), payload]
    return b"".join(parts)


def frames_of(body: bytes, offset: int) -> list[bytes]:
    """Return the paddings and frames that the crate writes at *offset* for the record *body*."""
    pieces: list[bytes] = []
    start = 0
    while not pieces or start < len(body):
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < 7:
            pieces.append(bytes(left))
            offset, left = offset + left, BLOCK_BYTES
        is_first, payload = start == 0, body[start : start + left - 7]
        start += len(payload)
        is_last = start == len(body)
        kind = (1 if is_last else 2) if is_first else (4 if is_last else 3)
        checksum = zlib.crc32(payload, zlib.crc32(bytes((kind,))))
        pieces.append(struct.pack("<IHB", checksum, len(payload), kind) + payload)
        offset += len(pieces[-1])
    return pieces


class Writer:
    """Writes records as the crate does, in files of *file_bytes*."""

    def __init__(self, directory: Path, file_bytes: int = 8 * BLOCK_BYTES) -> None:
        directory.mkdir()
        self.directory = directory
        self.file_bytes = file_bytes
        self.contents = [bytearray()]

    def write(self, kind: int, queue: str, position: int, items: Iterable[tuple[int, bytes]] = ()) -> Self:
        for piece in frames_of(encoded(kind, queue, position, items), len(self.contents[-1])):
            if len(self.contents[-1]) + len(piece) > self.file_bytes:
                self.contents.append(bytearray())
            self.contents[-1] += piece
        return self

    def put(self, file: int, offset: int, data: bytes) -> Self:
        """Write *data* over what a file holds."""
        content = self.contents[file]
        content += bytes(max(offset + len(data) - len(content), 0))
        content[offset : offset + len(data)] = data
        return self

    def save(self) -> None:
        for number, content in enumerate(self.contents):
            path = self.directory / PROGRAM.file_name(number)
            path.write_bytes(bytes(content) + bytes(self.file_bytes - len(content)))


def frame_at(number: int) -> int:
    """Return where the frame of a record of the first block of `written` begins."""
    return CREATE_BYTES + number * FRAME_BYTES


def written(directory: Path, records: int = 600, file_bytes: int = 8 * BLOCK_BYTES) -> Writer:
    """Write a queue "q" with records of 100 bytes."""
    writer = Writer(directory, file_bytes)
    writer.write(TOUCH, "q", 0)
    for number in range(records):
        writer.write(APPEND, "q", number, [(number, bytes([number % 256]) * 100)])
    writer.save()
    return writer


def read(directory: Path) -> PROGRAM.Reader:  # type: ignore[name-defined]  # loaded by its path
    reader = PROGRAM.Reader(PROGRAM.Directory(directory))
    reader.read()
    return reader


def findings_in(directory: Path) -> Sequence[PROGRAM.Finding]:  # type: ignore[name-defined]
    found: Sequence[PROGRAM.Finding] = read(directory).findings  # type: ignore[name-defined]
    return found


def positions(directory: Path) -> list[int]:
    appends = PROGRAM.Reader(PROGRAM.Directory(directory)).appends()
    return [position for _, record in appends for position, _ in record.items]


@pytest.fixture
def crate(tmp_path: Path) -> Path:
    return tmp_path / "crate"


def test_a_kind_that_does_not_exist_loses_its_block_and_says_how_many_frames(crate: Path) -> None:
    """The crate skips the rest of the block; the readable frames in it are counted."""
    written(crate).put(0, frame_at(10) + 6, b"\x09").save()
    (finding,) = [found for found in findings_in(crate) if not found.silent]
    assert (finding.offset, finding.reason, finding.torn) == (frame_at(10), "frame kind 9 does not exist", False)
    lost = sorted(set(range(600)) - set(positions(crate)))
    assert lost[0] == 10
    # The block's last frame belongs to a record that continues in the next one.
    assert finding.hidden_frames == len(lost) - 1


def test_a_length_beyond_the_block_loses_its_block(crate: Path) -> None:
    """A frame cannot be longer than its block."""
    written(crate).put(0, frame_at(10) + 4, b"\xff\xff").save()
    (finding,) = [found for found in findings_in(crate) if not found.silent]
    assert (finding.reason, finding.torn) == ("a frame is longer than its block", False)


def test_a_bad_kind_in_the_last_frame_is_a_torn_tail(crate: Path) -> None:
    """Nothing readable follows it, so it may be a write that a crash interrupted."""
    written(crate, records=20).put(0, frame_at(19) + 6, b"\x09").save()
    assert [finding.torn for finding in findings_in(crate)] == [True]
    assert positions(crate) == list(range(19))


def test_an_unfinished_record_at_the_end_is_a_torn_tail_that_the_crate_does_not_mention(crate: Path) -> None:
    """The crate drops a record cut between two frames without a warning; here it is reported."""
    first, *_ = frames_of(encoded(APPEND, "q", 1, [(1, bytes(50_000))]), frame_at(1))
    written(crate, records=1).put(0, frame_at(1), first).save()
    findings = findings_in(crate)
    assert [(found.torn, found.silent, found.offset) for found in findings] == [(True, True, frame_at(1))]


def test_a_position_that_goes_back_is_refused_as_the_crate_refuses_it(crate: Path) -> None:
    """The crate then refuses the whole directory; the error has the place."""
    written(crate, records=2).write(APPEND, "q", 0, [(0, b"again")]).save()
    with pytest.raises(CorruptionError) as raised:
        read(crate)
    assert (raised.value.segment, raised.value.offset) == ("wal-00000000000000000000", frame_at(2))
    ran = run(crate, crate.with_name("wal"))
    assert (ran.code, "position 0 comes after 1; the crate refuses" in ran.err) == (1, True)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (encoded(9, "q", 0), "record kind 9 is not known"),
        (b"\x04", "a record is shorter than its head"),
        (encoded(APPEND, "q", 1)[:-1], "a record's queue name is cut short"),
        (encoded(APPEND, "q", 1)[:-1] + b"\xff", "a record's queue name is not UTF-8"),
        (encoded(APPEND, "q", 1, [(1, b"payload")])[:-1], "an item is cut short"),
        (encoded(APPEND, "q", 1) + bytes(5), "an item is cut short"),
    ],
)
def test_a_record_that_the_crate_cannot_read_is_damage(body: bytes, reason: str, crate: Path) -> None:
    """The crate skips it with a warning."""
    written(crate, records=1).put(0, frame_at(1), b"".join(frames_of(body, frame_at(1)))).save()
    (finding,) = findings_in(crate)
    assert (finding.reason, finding.torn, finding.silent) == (reason, False, False)


def test_a_touch_of_a_queue_with_records_empties_it(crate: Path) -> None:
    """The crate replaces the queue by an empty one at that position."""
    written(crate, records=2).write(TOUCH, "q", 7).save()
    assert run(crate, crate.with_name("wal")).code == 0
    with ReadOnlyLog.open(crate.with_name("wal")) as log:
        assert (log.first_position("q"), log.next_position("q"), list(log.range("q"))) == (7, 7, [])


def test_a_missing_file_in_the_middle_is_damage(crate: Path) -> None:
    """The crate continues as if nothing were missing."""
    written(crate, records=900, file_bytes=BLOCK_BYTES)
    (crate / "wal-00000000000000000001").unlink()
    found = [finding for finding in findings_in(crate) if not finding.torn]
    assert "1 file(s) are missing from here on" in [finding.reason for finding in found]


def test_a_first_file_shorter_than_a_block_is_refused(crate: Path) -> None:
    """A crash while the directory is created can leave files that the crate never opens again."""
    crate.mkdir()
    (crate / "wal-00000000000000000000").touch()
    with pytest.raises(CorruptionError, match="shorter than a block"):
        read(crate)


def test_a_block_that_is_there_in_part_is_not_read_but_reported(crate: Path) -> None:
    """The crate reads only whole blocks; records in an incomplete block are reported."""
    written(crate, records=400)
    os.truncate(crate / "wal-00000000000000000000", BLOCK_BYTES + 5_000)
    reasons = [finding.reason for finding in findings_in(crate) if not finding.torn]
    assert "records in a block that the file holds only in part, which the crate does not read" in reasons


def test_a_directory_that_changes_meanwhile_is_refused(crate: Path) -> None:
    """The log is not taken for complete."""
    writer = written(crate, records=20)
    source = PROGRAM.Directory(crate)
    queues = read(crate).queues
    writer.write(APPEND, "q", 20, [(20, b"later")]).save()
    with pytest.raises(PROGRAM.SourceError, match="changed while it was read"):
        PROGRAM.build(crate.with_name("wal"), source, queues)
    assert os.listdir(crate.parent) == ["crate"]


QUEUES = st.sampled_from(["a", "b", "é"])
SIZES = st.one_of(st.integers(0, 20), st.integers(0, 3 * BLOCK_BYTES))
CALLS: st.SearchStrategy[tuple[int, str, int, list[int]]] = st.one_of(
    st.tuples(st.just(APPEND), QUEUES, st.integers(0, 3), st.lists(SIZES, max_size=3)),
    st.tuples(st.just(TRUNCATE), QUEUES, st.integers(0, 30), st.just([])),
    st.tuples(st.sampled_from([TOUCH, DELETE]), QUEUES, st.just(0), st.just([])),
)
Queues = dict[str, tuple[int, list[tuple[int, bytes]]]]


def apply(queues: Queues, writer: Writer, kind: int, queue: str, number: int, sizes: list[int]) -> None:
    """Write the record of a call that the crate makes, and change *queues* (next position, records) as it does."""
    if kind == TOUCH and queue not in queues:
        queues[queue] = 0, []
        writer.write(TOUCH, queue, 0)
        return
    if kind == TOUCH or queue not in queues:
        return
    following, records = queues[queue]
    if kind == DELETE:
        del queues[queue]
        writer.write(DELETE, queue, following)
    elif kind == TRUNCATE:
        queues[queue] = max(following, number + 1), [record for record in records if record[0] > number]
        writer.write(TRUNCATE, queue, number)
    elif sizes:
        items = [(following + number + at, bytes([at]) * size) for at, size in enumerate(sizes)]
        queues[queue] = items[-1][0] + 1, records + items
        writer.write(APPEND, queue, items[0][0], items)


@settings(max_examples=25)
@given(st.lists(CALLS, max_size=25), st.integers(1, 4))
def test_any_history_of_calls_is_imported(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[int, str, int, list[int]]], blocks: int
) -> None:
    """In files of any size: the log shows the queues, next positions and records of the crate, without a finding."""
    directory = tmp_path_factory.mktemp("crate")
    writer, queues = Writer(directory / "crate", blocks * BLOCK_BYTES), Queues()
    for call in calls:
        apply(queues, writer, *call)
    writer.save()
    assert findings_in(writer.directory) == []
    source = PROGRAM.Directory(writer.directory)
    PROGRAM.build(directory / "wal", source, PROGRAM.renamed(read(writer.directory).queues, {}))
    with ReadOnlyLog.open(directory / "wal") as log:
        found = {name: (log.next_position(name), [*map(tuple, log.range(name))]) for name in log.list_queues()}
    assert found == queues
