"""Salvage determines which queue a record belongs to if what created, named or ended that queue is lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError, MultiRecordLog, PersistPolicy, ReadOnlyLog
from mrecordlog_async.format.controls import CREATE, DELETE
from mrecordlog_async.format.header import Closed, encode_closed
from mrecordlog_async.format.record import APPEND, COMMIT
from mrecordlog_async.format.table import TABLE
from mrecordlog_async.maintenance.lenient_replay import SalvagedQueue
from mrecordlog_async.maintenance.salvage import salvage
from mrecordlog_async.maintenance.verify import verify
from tests import damage

SEGMENT_BYTES = 65_536
ROLL = bytes(SEGMENT_BYTES)
"""A record that fills a segment."""


def build(directory: Path, fill: Callable[[MultiRecordLog], Awaitable[object]]) -> list[Path]:
    """Create and close a log; return its segments."""

    async def make() -> None:
        policy = PersistPolicy.never()
        async with MultiRecordLog.open(directory, persist_policy=policy, segment_bytes=SEGMENT_BYTES) as log:
            await fill(log)

    asyncio.run(make())
    return damage.segments(directory)


def harm(segment: Path, *kinds: int | tuple[int, int]) -> None:
    """Zero the beginnings of log records: for each kind the first one in the segment, or the one with that number."""
    frames = damage.frames(segment)
    for wanted in kinds:
        kind, number = wanted if isinstance(wanted, tuple) else (wanted, 0)
        found = [offset for offset, _, _, payload in frames if payload[:1] == bytes((kind,))]
        damage.zero(segment, found[number], 30)


def read(directory: Path) -> dict[str, SalvagedQueue]:
    """Salvage a damaged log; return its queues by name."""
    with pytest.raises(CorruptionError):
        ReadOnlyLog.open(directory)
    found = salvage(str(directory))
    assert found.damage
    assert len({queue.name for queue in found.queues}) == len(found.queues)
    return {queue.name: queue for queue in found.queues}


def records(queue: SalvagedQueue) -> dict[int, bytes]:
    return {position: payload for run in queue.live_runs() for position, payload in run.records()}


def lost_name(queue_id: int) -> str:
    return f"lost-and-found-{queue_id}"


async def made_twice(log: MultiRecordLog) -> None:
    """Create "a" with two records, and recreate it with one."""
    await log.create_queue("a")
    await log.create_queue("b")
    await log.append_records("a", None, [b"old", b"older"])
    await log.delete_queue("a")
    await log.create_queue("a")
    await log.append_record("a", None, b"new")


def test_a_create_ends_the_older_queue_of_its_name(directory: Path) -> None:
    """Its DELETE is lost, but two queues never have the same name."""
    (segment,) = build(directory, made_twice)
    harm(segment, DELETE)
    queues = read(directory)
    assert sorted(queues) == ["a", "b"]
    assert records(queues["a"]) == {0: b"new"}
    assert (queues["a"].missing, queues["a"].maybe_gone, queues["b"].maybe_gone) == ([], False, True)


def test_records_of_a_queue_whose_name_is_lost_go_to_no_other_queue(directory: Path) -> None:
    """Neither the CREATE nor the DELETE of the older queue is readable; the ids distinguish the queues."""
    (segment,) = build(directory, made_twice)
    harm(segment, DELETE, (CREATE, 2))
    queues = read(directory)
    first_id = queues["a"].id
    lost = queues[lost_name(first_id + 2)]
    assert (records(lost), lost.name_lost, lost.maybe_gone) == ({0: b"new"}, True, False)
    assert (records(queues["a"]), queues["a"].maybe_gone) == ({0: b"old", 1: b"older"}, True)


def test_a_cut_off_end_may_have_held_what_ended_a_queue(directory: Path) -> None:
    """Everything readable of the older queue is returned, with a note that it may have been deleted."""
    (segment,) = build(directory, made_twice)
    damage.cut(segment, damage.batch_ends(segment)[2] + 5)
    queues = read(directory)
    assert (records(queues["a"]), queues["a"].maybe_gone) == ({0: b"old", 1: b"older"}, True)


async def made_twice_in_segments(log: MultiRecordLog) -> None:
    """Create "a" in the first segment and again in the third, append to it in the fifth; "keeper" keeps them all."""
    await log.create_queue("a")
    await log.append_record("a", None, b"old")
    await log.create_queue("keeper")
    await log.append_record("keeper", None, b"kept")
    await log.append_record("keeper", None, ROLL)
    await log.delete_queue("a")
    await log.create_queue("a")
    await log.append_records("a", 5, [b"lost", b"too"])
    await log.append_record("keeper", None, ROLL)
    await log.append_record("a", None, b"new")


def test_a_table_ends_and_names_queues(directory: Path) -> None:
    """A whole segment with a DELETE and a CREATE is missing; the next table shows the state of both queues."""
    segments = build(directory, made_twice_in_segments)
    assert len(segments) == 5
    segments[2].unlink()
    queues = read(directory)
    assert sorted(queues) == ["a", "keeper"]
    assert (records(queues["a"]), queues["a"].missing) == ({7: b"new"}, [(5, 6)])
    assert not any(queue.maybe_gone for queue in queues.values())


def test_without_that_table_both_queues_stand_apart(directory: Path) -> None:
    """The older queue may have been deleted, and the newer one's name is lost."""
    segments = build(directory, made_twice_in_segments)
    segments[2].unlink()
    for segment in segments[3:]:
        harm(segment, TABLE)
    queues = read(directory)
    assert (records(queues["a"]), queues["a"].maybe_gone) == ({0: b"old"}, True)
    newer = queues[lost_name(queues["a"].id + 2)]
    assert (records(newer), newer.missing, newer.maybe_gone) == ({7: b"new"}, [(0, 6)], False)


def test_a_table_gives_a_name_back(directory: Path) -> None:
    """A queue whose CREATE is lost gets its name from the next segment's table."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("a")
        await log.append_record("a", None, b"first")
        await log.append_record("a", None, ROLL)

    first, _ = build(directory, fill)
    harm(first, CREATE)
    (queue,) = read(directory).values()
    assert (queue.name, queue.name_lost, sorted(records(queue))) == ("a", False, [0, 1])


def test_a_queue_that_is_really_called_lost_and_found_keeps_its_name(directory: Path) -> None:
    """The queue without a name gets a longer one."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("a")
        await log.append_record("a", None, b"nameless")
        await log.create_queue(lost_name(log.summary()["a"].id))

    (segment,) = build(directory, fill)
    harm(segment, CREATE)
    named, nameless = sorted(read(directory).values(), key=lambda queue: queue.name)
    assert (nameless.name, records(nameless)) == (f"{named.name}-again", {0: b"nameless"})
    assert (named.name_lost, nameless.name_lost) == (False, True)


def test_what_is_known_of_a_lost_append_does_not_bring_a_queue_back(directory: Path) -> None:
    """The header of its record and the later DELETE are intact, in the same damaged range."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("a")
        await log.append_record("a", None, bytes(40_000))
        await log.delete_queue("a")
        await log.create_queue("b")

    (segment,) = build(directory, fill)
    frames = damage.frames(segment)
    damage.flip_byte(segment, next(offset for offset, _, kind, _ in frames if kind == 4) + 20)
    for offset, _, _, payload in frames:
        if payload[:1] == b"\6" and offset > 32_768:  # so that only CLOSED shows where a batch ends
            damage.flip_byte(segment, offset + 10)
    assert sorted(read(directory)) == ["b"]


def test_a_queue_of_which_only_heads_are_left_is_named(directory: Path) -> None:
    """Its CREATE and its record are lost, but a valid frame shows which positions are missing."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("a")
        await log.append_record("a", 3, bytes(40_000))

    (segment,) = build(directory, fill)
    last = next(offset for offset, _, kind, _ in damage.frames(segment) if kind == 4)
    harm(segment, CREATE)
    damage.flip_byte(segment, last + 20)
    (queue,) = read(directory).values()
    assert (queue.name_lost, queue.record_count, queue.missing, queue.next_position) == (True, 0, [(0, 3)], 4)


def test_a_truncate_behind_damage_hides_no_loss(directory: Path) -> None:
    """The truncate shows where the queue begins, not where it ended: positions lost before it are still named."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("a")
        await log.append_records("a", None, [b"one"] * 5)
        await log.append_records("a", None, [b"two"] * 5)
        await log.truncate("a", 2)
        await log.append_record("a", None, b"three")

    (segment,) = build(directory, fill)
    harm(segment, (APPEND, 1))
    (queue,) = read(directory).values()
    assert (sorted(records(queue)), queue.missing) == ([3, 4, 10], [(5, 9)])


def test_a_damaged_head_is_believed_only_up_to_the_next_position(directory: Path) -> None:
    """It claims a thousand records too many; the next record, and later losses, correct this."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("a")
        for number in range(6):
            await log.append_record("a", None, b"%d" % number)

    (segment,) = build(directory, fill)
    appends = [offset for offset, _, _, payload in damage.frames(segment) if payload[:1] == bytes((APPEND,))]
    damage.flip_byte(segment, appends[1] + 7 + 18, mask=0x04)  # of the count
    damage.zero(segment, appends[3], 30)
    (queue,) = read(directory).values()
    assert (sorted(records(queue)), queue.missing, queue.next_position) == ([0, 2, 4, 5], [(1, 1), (3, 3)], 6)


def test_a_damaged_head_claims_no_more_records_than_have_room(directory: Path) -> None:
    """No later record corrects its count: one record is lost, and the queue does not skip 65,280 positions."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("a")
        await log.append_record("a", None, b"0")

    (segment,) = build(directory, fill)
    append = next(offset for offset, _, _, payload in damage.frames(segment) if payload[:1] == bytes((APPEND,)))
    damage.flip_byte(segment, append + 7 + 18)  # of the count
    (queue,) = read(directory).values()
    assert (records(queue), queue.missing, queue.next_position) == ({}, [(0, 0)], 1)


async def two_segments(log: MultiRecordLog) -> None:
    await log.create_queue("a")
    await log.append_record("a", None, ROLL)
    await log.append_record("a", None, b"in the second")


@pytest.mark.parametrize("broken", [False, True], ids=["readable", "broken"])
def test_the_end_of_a_log_that_was_closed_is_no_torn_tail(directory: Path, broken: bool) -> None:
    """CLOSED proves that all of it was acknowledged, even if it is unreadable or the last segment is missing."""
    first, second = build(directory, two_segments)
    if broken:
        damage.flip_byte(directory / "CLOSED", 30)
        harm(second, APPEND)
    else:
        second.unlink()
        damage.flip_byte(first, damage.batch_ends(first)[-1] - 3)
    read(directory)
    found = salvage(str(directory))
    assert found.torn_bytes == 0
    assert len(found.damage) == 2
    assert all(queue.maybe_gone for queue in found.queues)


def test_a_note_of_an_end_that_batches_follow_is_damage(directory: Path) -> None:
    """Opening refuses the log, repair does not: it reads to the end, and the report says what to do."""

    async def more(log: MultiRecordLog) -> None:
        await log.append_record("a", None, b"more")

    build(directory, two_segments)
    older = (directory / "CLOSED").read_bytes()
    build(directory, more)
    (directory / "CLOSED").write_bytes(older)
    (queue,) = read(directory).values()
    assert (sorted(records(queue)), queue.missing, queue.maybe_gone) == ([0, 1, 2], [], False)
    found = verify(directory)
    assert not found.ok
    assert [(each.segment, each.reason) for each in found.damage] == [
        ("CLOSED", "CLOSED is older than the last segment; remove it")
    ]


@pytest.mark.parametrize("log_id", [None, bytes(16)], ids=["older", "of another log"])
def test_a_note_of_another_end_is_damage(directory: Path, log_id: bytes | None) -> None:
    """Opening refuses the log, repair does not: no record is lost. With a note of another log, the end is unknown."""
    build(directory, two_segments)
    with ReadOnlyLog.open(directory) as log:
        contents = log.recovered
    at = contents.end
    note = Closed(log_id or contents.log_id, at.segment if log_id else 0, at.offset, at.last_batch)
    (directory / "CLOSED").write_bytes(encode_closed(note))
    (queue,) = read(directory).values()
    assert (sorted(records(queue)), queue.missing, queue.maybe_gone) == ([0, 1], [], log_id is not None)


@pytest.mark.parametrize("back", [0, 2], ids=["its end", "an earlier end"])
@pytest.mark.parametrize("other", [-1, 1], ids=["lower", "higher"])
def test_a_note_of_another_last_batch_is_damage(directory: Path, back: int, other: int) -> None:
    """At the offset that CLOSED names ends a batch, but not that one: what follows it is read, too."""

    async def more(log: MultiRecordLog) -> None:
        await two_segments(log)
        for _ in range(3):
            await log.append_record("a", None, b"more")

    *_, last = build(directory, more)
    with ReadOnlyLog.open(directory) as log:
        log_id, at = log.recovered.log_id, log.recovered.end
    end = damage.batch_ends(last)[-1 - back]
    note = Closed(log_id, at.segment, end, at.last_batch - back + other)
    (directory / "CLOSED").write_bytes(encode_closed(note))
    (queue,) = read(directory).values()
    assert (sorted(records(queue)), queue.missing) == ([0, 1, 2, 3, 4], [])
    reason = f"CLOSED says the log ends after batch {note.last_batch} at offset {end}, but it does not"
    assert [(each.segment, each.reason) for each in verify(directory).damage] == [("CLOSED", reason)]


@pytest.mark.parametrize(("lost", "kept"), [((), [0, 1, 2]), ((1,), [0, 2])], ids=["ends", "ends and a record"])
def test_whole_records_after_a_damaged_end_are_kept(directory: Path, lost: tuple[int, ...], kept: list[int]) -> None:
    """No COMMIT follows them, and what says where the log was closed is damaged: all of it was acknowledged."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("a")
        for number in range(3):
            await log.append_record("a", None, b"%d" % number)

    (segment,) = build(directory, fill)
    harm(segment, *((APPEND, number) for number in lost), (COMMIT, 2), (COMMIT, 3))
    damage.flip_byte(directory / "CLOSED", 50)
    (queue,) = read(directory).values()
    assert (sorted(records(queue)), queue.missing) == (kept, [(number, number) for number in lost])


@pytest.mark.parametrize("seed", range(4))
def test_of_two_logs_in_one_directory_the_last_segment_says_which_is_meant(directory: Path, seed: int) -> None:
    """With one segment of each, every run reads the same one: a repair writes what the run before it has shown."""
    _, last = build(directory, two_segments)
    last.rename(last.with_suffix(".kept"))
    for path in (directory / "CLOSED", directory / "LOCK", *damage.segments(directory)[:1]):
        path.unlink()
    other, _ = build(directory / "other", two_segments)
    other.rename(directory / other.name)
    last.with_suffix(".kept").rename(last)
    program = f"import sys; from {salvage.__module__} import salvage; print(salvage(sys.argv[1]).damage[0].segment)"
    done = subprocess.run(
        [sys.executable, "-c", program, directory],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{other.name}\n"
