"""The parser: pieces of any size give the same batches, and every COMMIT is found wherever it stands."""

from __future__ import annotations

import random

import pytest

from mrecordlog_async.format.controls import Create
from mrecordlog_async.format.frame import BLOCK_BYTES, Buffer, encode_frames, encode_unsplit, segment_seed
from mrecordlog_async.format.header import HEADER_BYTES
from mrecordlog_async.format.parse import MalformedError, ParsedBatch, SegmentParser, find_commits
from mrecordlog_async.format.record import Append, Commit, LogRecord, encode_commit, encode_record
from mrecordlog_async.format.table import Table, encode_table
from mrecordlog_async.model import Run

LOG_ID = b"sixteen byte id."
SEED = segment_seed(LOG_ID, 0)


def segment(batches: list[list[LogRecord]]) -> bytes:
    """Write a segment without its header's content."""
    buffers: list[Buffer] = [bytes(HEADER_BYTES)]
    end = encode_frames(encode_table(Table(1, ())), HEADER_BYTES, SEED, buffers)
    for number, records in enumerate(batches, 1):
        start = offset = end
        for record in records:
            offset = encode_frames(encode_record(record), offset, SEED, buffers)
        end = encode_unsplit(encode_commit(Commit(LOG_ID, 0, number, number - 1, start, 0, 0)), offset, SEED, buffers)
    return b"".join(buffers)


def parse(data: bytes, piece_bytes: int) -> tuple[list[ParsedBatch], SegmentParser]:
    """Feed *data* in pieces."""
    parser = SegmentParser(LOG_ID, 0, 1)
    batches: list[ParsedBatch] = []
    for base in range(0, len(data), piece_bytes):
        batches += parser.feed(data[base : base + piece_bytes], base)
    return batches, parser


def sized(size: int) -> list[LogRecord]:
    """Make a batch whose one record takes about *size* bytes."""
    return [Append(1, Run.of(0, [b"x" * size]))]


@pytest.mark.parametrize("left", range(80))
def test_pieces_may_end_anywhere_relative_to_a_frame(left: int) -> None:
    """With any number of bytes left at a block's and piece's end, blockwise reading finds the same as whole."""
    first = segment([sized(0)])
    commit_and_frame = 64 + 7 + 21 + 8
    filling = BLOCK_BYTES - left - len(first) - commit_and_frame
    data = segment([sized(0), sized(filling), sized(5), sized(100_000), sized(1)])
    whole, whole_parser = parse(data, len(data) // BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES)
    assert len(whole) == 5
    assert whole_parser.end == len(data)
    pieces, pieces_parser = parse(data, BLOCK_BYTES)
    assert pieces == whole
    assert pieces_parser.end == len(data)
    assert not pieces_parser.stopped


def test_batches_of_random_sizes_come_back_in_pieces() -> None:
    """Hundreds of batches of any size, read in pieces of one to five blocks."""
    rng = random.Random(7)
    batches: list[list[LogRecord]] = [[Create(1, "q")]]
    sizes = [[rng.choice([0, 10, 900, 33_000]) for _ in range(rng.randint(0, 3))] for _ in range(600)]
    batches.extend([sized(size)[0] for size in batch] for batch in sizes)
    data = segment(batches)
    for blocks in (1, 2, 5):
        found, parser = parse(data, blocks * BLOCK_BYTES)
        assert [batch.records for batch in found] == batches
        assert parser.end == len(data)


def test_parser_stops_at_the_first_place_that_is_no_batch() -> None:
    """No batch after a damaged one is returned, even if it is whole."""
    data = bytearray(segment([sized(10), sized(10), sized(10)]))
    found, parser = parse(bytes(data), BLOCK_BYTES)
    data[found[0].end + 20] ^= 1
    again, parser = parse(bytes(data), BLOCK_BYTES)
    assert again == found[:1]
    assert parser.stopped
    assert (parser.end, parser.due_batch) == (found[0].end, 2)


def test_commit_of_another_batch_is_not_taken() -> None:
    """A COMMIT with the wrong number or beginning ends nothing."""
    data = segment([sized(10)])
    buffers: list[Buffer] = []
    encode_unsplit(encode_commit(Commit(LOG_ID, 0, 3, 1, len(data), 0, 0)), len(data), SEED, buffers)
    found, parser = parse(data + b"".join(buffers), BLOCK_BYTES)
    assert len(found) == 1
    assert parser.end == len(data)
    buffers = []
    encode_unsplit(encode_commit(Commit(LOG_ID, 0, 2, 1, 5, 0, 0)), len(data), SEED, buffers)
    assert len(parse(data + b"".join(buffers), BLOCK_BYTES)[0]) == 1


def test_frames_out_of_order_are_malformed() -> None:
    """Valid frames that make no record were written by nobody we know."""
    data = segment([sized(100_000)])
    parser = SegmentParser(LOG_ID, 0, 1)
    first_block = data[:BLOCK_BYTES]
    list(parser.feed(first_block, 0))
    forged: list[Buffer] = []
    encode_frames([b"\x03" + bytes(8)], BLOCK_BYTES, SEED, forged)
    with pytest.raises(MalformedError):
        list(parser.feed(b"".join(forged), BLOCK_BYTES))


@pytest.mark.parametrize("at", [0, 1, 63, 64, 1000, 20_000])
def test_commits_are_found_at_any_byte(at: int) -> None:
    """A search from any byte finds the whole COMMITs after it, and only those of this segment."""
    data = segment([sized(300) for _ in range(100)])
    batches, _ = parse(data, BLOCK_BYTES)
    expected = [(batch.commit.batch, batch.end) for batch in batches if batch.end - 64 >= at]
    assert [(commit.batch, end) for commit, end in find_commits(data[at:], at, LOG_ID, 0)] == expected
    assert list(find_commits(data[at:], at, LOG_ID, 1)) == []
    assert list(find_commits(data[at:], at + 1, LOG_ID, 0)) == []
    assert list(find_commits(LOG_ID * 50, at, LOG_ID, 0)) == []


@pytest.mark.parametrize("distance", [-1, 1, 64])
def test_a_commit_that_names_another_beginning_ends_the_log(distance: int) -> None:
    """The batch that is due begins where the last one ended; one that says otherwise was not written here."""
    whole = segment([sized(5), sized(5)])
    batches, parser = parse(whole, BLOCK_BYTES)
    first = batches[0].end
    buffers: list[Buffer] = [whole[:first]]
    offset = encode_frames(encode_record(sized(5)[0]), first, SEED, buffers)
    encode_unsplit(encode_commit(Commit(LOG_ID, 0, 2, 1, first + distance, 0, 0)), offset, SEED, buffers)
    found, parser = parse(b"".join(buffers), BLOCK_BYTES)
    assert found == batches[:1]
    assert (parser.end, parser.due_batch, parser.stopped) == (first, 2, True)
