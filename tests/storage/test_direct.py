"""Direct writes: whole blocks from an aligned buffer, the last one written again; and where they are impossible."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mrecordlog_async.storage.direct import PIECE_BYTES, STAGING_BYTES, Staging, whole_blocks
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES, Buffer
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import SegmentFile

HEAD = bytes(range(256)) * 20


class Noting(OsFileSystem):
    """Notes the calls that change a file, with (offset, bytes) of writes. `takes` limits the next writes."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.writes: list[tuple[int, int]] = []
        self.takes: list[int] = []
        self.under_way: list[tuple[int, bytes]] = []
        self.refuses: set[str] = set()

    def set_direct(self, handle: int, direct: bool) -> None:
        self._note("set_direct" if direct else "set_cached")
        super().set_direct(handle, direct)

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        self._note("read_into")
        return super().read_into(handle, buffer, offset)

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._note("write")
        return super().write(handle, self._some(buffers, offset), offset)

    def write_durable(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._note("write_durable")
        return super().write_durable(handle, self._some(buffers, offset), offset)

    def sync(self, handle: int) -> None:
        self._note("sync")
        super().sync(handle)

    def open_writes(self, most: int) -> int:
        self._note("open_writes")
        return super().open_writes(most)

    def start_write(self, writes: int, handle: int, buffer: memoryview, offset: int) -> None:
        self._note("start_write")
        super().start_write(writes, handle, buffer, offset)
        self.under_way.append((offset, bytes(buffer)))

    def finish_writes(self, writes: int, count: int) -> dict[int, int]:
        self._note("finish_writes")
        taken = super().finish_writes(writes, count)
        self.under_way.clear()
        return {offset: self.takes.pop(0) if self.takes else size for offset, size in sorted(taken.items())}

    def close_writes(self, writes: int) -> None:
        self.calls.append("close_writes")
        super().close_writes(writes)
        self.under_way.clear()

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.refuses:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def _some(self, buffers: Sequence[Buffer], offset: int) -> Sequence[Buffer]:
        self.writes.append((offset, sum(map(len, buffers))))
        if not self.takes:
            return buffers
        (buffer,) = buffers
        return [memoryview(buffer)[: self.takes.pop(0)]]


@pytest.fixture
def files() -> Noting:
    return Noting()


@pytest.fixture
def segment(files: Noting, tmp_path: Path) -> Iterator[SegmentFile]:
    """A synced segment that holds `HEAD`, written through the cache; skipped where direct access is impossible."""
    path = str(tmp_path / "segment")
    segment = SegmentFile(files, path, files.create(path), 0)
    segment.reserve(16 << 20, 16 << 20)
    segment.write([HEAD], 0)
    segment.sync()
    segment.begin_direct(Staging(), len(HEAD))
    if not segment.is_direct:
        pytest.skip("no direct access here")
    files.calls.clear()
    files.writes.clear()
    yield segment
    segment.close()


@pytest.fixture
def pieces(segment: SegmentFile, files: Noting) -> SegmentFile:
    """The segment, which takes pieces; skipped where the system does not."""
    if not segment.takes_pieces():
        pytest.skip("no writes under way here")
    files.calls.clear()
    return segment


def content(segment: SegmentFile, end: int) -> bytes:
    with open(segment.path, "rb") as file:
        return file.read(end)


def test_bytes_arrive_where_batches_end(segment: SegmentFile) -> None:
    """Whatever the sizes of batches, the file holds them back to back, and zeros after them."""
    due = bytearray(HEAD)
    for number, size in enumerate((1, 4_095, 4_096, 0, 8_191, 100, 1, 70_000, 3)):
        first, second = bytes([65 + number]) * (size // 2), bytes([97 + number]) * (size - size // 2)
        batch: list[Buffer] = [first, memoryview(second)]
        segment.write(batch, len(due), durable=True)
        due += b"".join(batch)
        assert content(segment, len(due) + 5_000) == due + bytes(5_000), size


def test_last_block_is_written_again(segment: SegmentFile, files: Noting) -> None:
    """A small batch is one write of the block that it ends in, beginning with the bytes that the block has."""
    segment.write([b"x" * 10], len(HEAD), durable=True)
    segment.write([b"y" * 10], len(HEAD) + 10, durable=True)
    assert files.writes == [(4_096, 4_096)] * 2
    assert content(segment, len(HEAD) + 20) == HEAD + b"x" * 10 + b"y" * 10


def test_durable_write_is_the_sync_if_all_before_it_is_durable(segment: SegmentFile, files: Noting) -> None:
    """After a write without its own sync, or a reservation, the file is synced; otherwise the write was the sync."""
    end = len(HEAD)
    for durable in (True, False, True, True):
        segment.write([b"x"], end, durable=durable)
        end += 1
        if durable:
            segment.sync()
    assert files.calls == ["write_durable", "write", "write", "sync", "write_durable"]
    files.calls.clear()
    segment.reserve((16 << 20) + 1, 32 << 20)
    segment.write([b"x"], end, durable=True)
    segment.sync()
    assert files.calls == ["write", "sync"]


@pytest.mark.parametrize("size", [STAGING_BYTES - len(HEAD) % 4_096, STAGING_BYTES, 3 * STAGING_BYTES + 17])
def test_batch_larger_than_the_buffer(segment: SegmentFile, files: Noting, size: int) -> None:
    """It is written in parts, and then synced once, as one sync of all is cheaper than one for each part."""
    data = os.urandom(size)
    segment.reserve(len(HEAD) + size + 4_096, 64 << 20)
    segment.sync()
    files.calls.clear()
    segment.write([data[:1_000], data[1_000:]], len(HEAD), durable=True)
    segment.sync()
    fits = len(HEAD) % 4_096 + size <= STAGING_BYTES
    assert files.calls == (["write_durable"] if fits else [*["write"] * (len(files.calls) - 1), "sync"])
    segment.write([b"end"], len(HEAD) + size, durable=True)
    assert content(segment, len(HEAD) + size + 3) == HEAD + data + b"end"


def test_writes_stay_inside_the_reserved_space(segment: SegmentFile, files: Noting) -> None:
    """Reservations are whole blocks, so padding does not move the end of the file."""
    size = files.size(segment.handle)
    assert size % DIRECT_BLOCK_BYTES == 0
    segment.write([bytes(size - len(HEAD) - 1)], len(HEAD), durable=True)
    assert files.size(segment.handle) == size
    segment.reserve(size + 1, size + 1)
    assert files.size(segment.handle) == segment.reserved_bytes == whole_blocks(size + 1)


@pytest.mark.parametrize("takes", [[4_096], [4_096 * 2], [512], [4_096, 512], [512, 4_096 * 2, 512]])
def test_short_write_goes_on_at_the_last_whole_block(segment: SegmentFile, files: Noting, takes: list[int]) -> None:
    """What was taken of a block is written again, with the whole block."""
    data = os.urandom(20_000)
    files.takes = list(takes)
    segment.write([data], len(HEAD), durable=True)
    assert not files.takes
    assert all(offset % DIRECT_BLOCK_BYTES == 0 for offset, _ in files.writes), "a disk may have blocks of this size"
    assert content(segment, len(HEAD) + 20_000) == HEAD + data


@pytest.mark.parametrize("takes", [[0], [4_096, 0], [512, 512]])
def test_disk_that_accepts_no_whole_block_is_an_error(segment: SegmentFile, files: Noting, takes: list[int]) -> None:
    """No endless loop: EIO."""
    files.takes = list(takes)
    with pytest.raises(OSError, match="no whole block"):
        segment.write([bytes(20_000)], len(HEAD), durable=True)


@pytest.mark.parametrize("call", ["set_direct", "read_into"])
def test_where_direct_access_is_impossible_writes_are_cached(files: Noting, tmp_path: Path, call: str) -> None:
    """It is found out before the first batch; the segment then works as without."""
    files.refuses = {call}
    path = str(tmp_path / "segment")
    segment = SegmentFile(files, path, files.create(path), 0)
    segment.reserve(5_000, 5_000)
    segment.write([HEAD], 0)
    segment.begin_direct(Staging(), len(HEAD))
    assert not segment.is_direct
    segment.write([b"x"], len(HEAD), durable=True)
    segment.sync()
    assert files.calls[-2:] == ["write", "sync"]
    assert content(segment, 1 << 20)[: len(HEAD) + 1] == HEAD + b"x"
    segment.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has direct access")
def test_last_block_that_cannot_be_read_is_an_error(files: Noting, tmp_path: Path) -> None:
    """A file that ends before its last batch does is not written."""
    path = str(tmp_path / "segment")
    segment = SegmentFile(files, path, files.create(path), 0)
    segment.write([HEAD], 0)
    with pytest.raises(OSError, match="cannot be read"):
        segment.begin_direct(Staging(), len(HEAD) + 4_096)
    segment.close()


def test_pieces_arrive_where_the_batch_belongs(pieces: SegmentFile, files: Noting) -> None:
    """Whatever the sizes of steps and batches, the file holds the bytes; the blocks between batches are repeated."""
    due = bytearray(HEAD)
    for size, step in ((3 * PIECE_BYTES, 100_000), (PIECE_BYTES + 1, 3_000), (9, 4), (2 * STAGING_BYTES + 77, 70_000)):
        batch = os.urandom(size)
        pieces.reserve(len(due) + size + 4_096, 64 << 20)
        assert pieces.write_in_pieces(in_steps(batch, step), len(due)) == len(due) + size
        due += batch
        pieces.write([b"next"], len(due))
        due += b"next"
        assert content(pieces, len(due) + 5_000) == due + bytes(5_000), size


def test_a_piece_is_begun_before_the_next_step_is_made(pieces: SegmentFile, files: Noting) -> None:
    """That is what they are for. All have ended afterwards, and one sync brings them to the medium."""

    def steps() -> Iterator[list[Buffer]]:
        for number in range(4):
            assert files.calls.count("start_write") == number
            yield [bytes(PIECE_BYTES)]

    pieces.write_in_pieces(steps(), len(HEAD))
    assert not files.under_way
    pieces.sync()
    assert files.calls == [*["start_write"] * 5, "finish_writes", "sync"]


@pytest.mark.parametrize("call", ["open_writes", "start_write"])
def test_where_pieces_cannot_be_written_plain_writes_do_it(segment: SegmentFile, files: Noting, call: str) -> None:
    """The batch that finds it out is whole; later ones are not even tried."""
    data = os.urandom(2 * PIECE_BYTES)
    files.refuses = {call}
    assert segment.takes_pieces() is (call == "start_write")
    if call == "start_write":
        segment.write_in_pieces(in_steps(data, 50_000), len(HEAD))
        assert files.calls[-3:] == ["write", "start_write", "write"]
        assert content(segment, len(HEAD) + len(data)) == HEAD + data
        assert not segment.takes_pieces()


@pytest.mark.parametrize("takes", [[0], [4_096 * 3], [512], [PIECE_BYTES, 4_096]])
def test_what_a_short_piece_left_is_written(pieces: SegmentFile, files: Noting, takes: list[int]) -> None:
    """From its last whole block on."""
    data = os.urandom(3 * PIECE_BYTES)
    files.takes = list(takes)
    pieces.write_in_pieces(in_steps(data, 60_000), len(HEAD))
    assert files.calls[-1] == "write"
    assert content(pieces, len(HEAD) + len(data)) == HEAD + data


@pytest.mark.parametrize("takes", [[-errno.EINVAL], [PIECE_BYTES, -errno.EPERM], [4_096, -errno.EOPNOTSUPP]])
def test_a_piece_that_is_refused_is_written_without_pieces(
    pieces: SegmentFile, files: Noting, takes: list[int]
) -> None:
    """After all have ended."""
    data = os.urandom(3 * PIECE_BYTES)
    files.takes = list(takes)
    pieces.write_in_pieces(in_steps(data, 60_000), len(HEAD))
    assert files.calls[-1] == "write"
    assert content(pieces, len(HEAD) + len(data)) == HEAD + data


@pytest.mark.parametrize("large", [False, True], ids=["one write", "pieces"])
def test_a_refused_direct_write_goes_through_the_page_cache(
    segment: SegmentFile, files: Noting, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """The same bytes, no piece being under way; so does what follows. A sync brings all of them to the medium."""
    write, is_direct = files.write, [True]

    def refused(handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        assert not files.under_way
        if is_direct[0]:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return write(handle, buffers, offset)

    def set_direct(handle: int, direct: bool) -> None:
        is_direct[0] = direct
        OsFileSystem.set_direct(files, handle, direct)

    monkeypatch.setattr(files, "write", refused)
    monkeypatch.setattr(files, "write_durable", refused)
    monkeypatch.setattr(files, "set_direct", set_direct)
    files.takes = [PIECE_BYTES, -errno.EINVAL]
    data, end = os.urandom(3 * PIECE_BYTES), len(HEAD) + 3 * PIECE_BYTES
    if large:
        segment.write_in_pieces(in_steps(data, 60_000), len(HEAD))
    else:
        segment.write([data], len(HEAD), durable=True)
    assert not segment.is_direct
    files.takes.clear()
    files.calls.clear()
    segment.write([b"next"], end, durable=True)
    segment.sync()
    assert files.calls == ["write", "sync"]
    assert content(segment, end + 4) == HEAD + data + b"next"


@pytest.mark.parametrize("takes", [[-errno.EIO], [PIECE_BYTES, -errno.ENOSPC], [4_096, -errno.EIO]])
def test_an_error_of_any_piece_is_an_error(pieces: SegmentFile, files: Noting, takes: list[int]) -> None:
    """It is raised after all have ended."""
    files.takes = list(takes)
    with pytest.raises(OSError, match=r"error|space") as caught:
        pieces.write_in_pieces(in_steps(bytes(3 * PIECE_BYTES), 60_000), len(HEAD))
    assert caught.value.errno == -takes[-1]
    assert not files.under_way


@pytest.mark.parametrize("refused", [set(), {"finish_writes"}], ids=["", "no results"])
def test_nothing_is_under_way_after_a_step_that_fails(pieces: SegmentFile, files: Noting, refused: set[str]) -> None:
    """What was begun is written from a buffer that is used again. If the results cannot be had, writing ends there."""
    files.refuses = refused

    def steps() -> Iterator[list[Buffer]]:
        yield [bytes(2 * PIECE_BYTES)]
        assert files.under_way
        raise MemoryError

    with pytest.raises(OSError if refused else MemoryError):
        pieces.write_in_pieces(steps(), len(HEAD))
    assert not files.under_way
    assert pieces.takes_pieces() is not bool(refused)


def in_steps(data: bytes, size: int) -> Iterator[list[Buffer]]:
    """Yield *data* in steps of *size* bytes, each of two buffers."""
    for at in range(0, len(data), size):
        step = memoryview(data)[at : at + size]
        yield [step[: size // 3], step[size // 3 :]]
