"""What a plan writes: how payloads become runs and MANYs."""

from __future__ import annotations

import pytest

from mrecordlog_async.engine.commit.batch import build_records, commit_of, encode_batch, encode_in_steps
from mrecordlog_async.engine.planning.draft import PlannedMany, PlannedRun, split_into_runs
from mrecordlog_async.format.frame import BLOCK_BYTES, FRAME_HEADER_BYTES, segment_seed
from mrecordlog_async.format.parse import COMMIT_FRAME_BYTES, find_commits
from mrecordlog_async.format.record import MANY_BYTES_MAX, MANY_RECORDS_MAX, Append, Many, appends_of, encode_record
from mrecordlog_async.model import RUN_BYTES, Run
from mrecordlog_async.storage.segment import LogEnd


class Large(bytes):
    """A payload that says it has 2 GiB."""

    def __len__(self) -> int:
        return 2**31


def test_a_run_holds_less_than_2_gib() -> None:
    """Its offsets have 31 bits: a larger payload is refused, and none gets a negative offset."""
    with pytest.raises(OverflowError):
        Run.of(0, [Large()])


async def test_runs_are_about_a_block() -> None:
    """Records of a batch share runs of at most a block; a larger one has its own."""
    payloads = [b"x" * 100] * 1000 + [b"y" * 100_000] + [b"z"] * 3
    runs = split_into_runs(5, payloads)
    assert [record for run in runs for record in run.records()] == list(
        zip(range(5, 5 + len(payloads)), payloads, strict=True)
    )
    assert all(len(run.payload) + len(run.offsets) <= RUN_BYTES + 4 for run in runs if run.record_count > 1)
    assert [run.record_count for run in runs if len(run.payload) >= 100_000] == [1]
    assert build_records([PlannedRun(1, 5, payloads)]) == [Append(1, run, run is not runs[0]) for run in runs]


def test_manys_are_as_large_as_they_may_be() -> None:
    """At most 250 records and 32 KiB, everything included, in the planned order; a larger record is an APPEND."""
    sizes = [0] * 600 + [100] * 600 + [40_000, 9_000, 32_739, 32_740, 1, 50_000, 50_000]
    payloads = [b"x" * size for size in sizes]
    ids = [number % 7 for number in range(len(sizes))]
    planned = PlannedMany(ids, range(len(sizes)), payloads)
    built = build_records([planned])
    expected = [
        Append(*each) for each in zip(ids, map(Run.of, range(len(sizes)), [[p] for p in payloads]), strict=True)
    ]
    assert [append for record in built for append in appends_of(record)] == expected
    manys = [record for record in built if isinstance(record, Many)]
    assert max(len(many.ids) for many in manys) == MANY_RECORDS_MAX
    assert max(sum(map(len, encode_record(many))) for many in manys) <= MANY_BYTES_MAX
    assert [len(record.run.payload) for record in built if isinstance(record, Append)] == [
        40_000, 9_000, 32_739, 32_740, 1, 50_000, 50_000,
    ]  # fmt: skip


def test_records_that_just_fit_share_a_many() -> None:
    """The limit counts the ids, positions and offsets too."""
    (many,) = build_records([PlannedMany([1, 2], [0, 0], [b"x" * 32_000, b"y" * (768 - 5 - 32 - 12)])])
    assert sum(map(len, encode_record(many))) == MANY_BYTES_MAX
    assert len(build_records([PlannedMany([1, 2], [0, 0], [b"x" * 32_000, b"y" * (769 - 5 - 32 - 12)])])) == 2


@pytest.mark.parametrize("offset", [64, 32_768 - 6, 32_768 - 50])
@pytest.mark.parametrize("sizes", [[700_000], [900] * 700, [32_761, 300_000, 5]])
def test_a_batch_in_steps_is_the_same_batch(offset: int, sizes: list[int]) -> None:
    """Its bytes, its COMMIT and its end are those of a batch that is encoded at once."""
    records = build_records([PlannedRun(1, 5, [bytes([at % 251]) * size for at, size in enumerate(sizes)])])
    at = LogEnd(3, 64, offset, 1, 8, 7)
    bodies = [encode_record(record) for record in records]
    commit = commit_of(at, 2, bytes(16), 1_000)
    buffers, end = encode_batch(bodies, commit, at.offset, 99)
    steps, stop = encode_in_steps(bodies, commit, at.offset, 99)
    assert b"".join(map(b"".join, steps)) == b"".join(buffers)
    assert stop == end == offset + sum(map(len, buffers))


@pytest.mark.parametrize("left", range(COMMIT_FRAME_BYTES + 2))
def test_a_commit_is_found_whole_wherever_its_batch_ends(left: int) -> None:
    """It never spans two blocks: whatever is damaged before it, it proves that its batch was written."""
    bodies = [encode_record(record) for record in build_records([PlannedRun(1, 5, [b"a record"])])]
    offset = 2 * BLOCK_BYTES - left - FRAME_HEADER_BYTES - sum(map(len, bodies[0]))  # the block has *left* bytes
    at, log_id = LogEnd(3, 64, offset, 1, 8, 7), bytes(range(16))
    buffers, end = encode_batch(bodies, commit_of(at, 2, log_id, 1_000), offset, segment_seed(log_id, 3))
    found = find_commits(b"".join(buffers), offset, log_id, 3)
    assert [(commit.batch, stop) for commit, stop in found] == [(9, end)]
