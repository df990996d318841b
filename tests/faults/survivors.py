"""Bugs that the suite once missed, patched in like those in `seeded_bugs`. The suite now finds each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from mrecordlog_async.engine.commit import open as opening
from mrecordlog_async.engine.commit.batch import CommitRequest
from mrecordlog_async.engine.commit.disk_space import DiskSpace
from mrecordlog_async.engine.commit.journal import Journal
from mrecordlog_async.engine.commit.unsynced import UnsyncedChanges
from mrecordlog_async.engine.commit.upkeep import Timers
from mrecordlog_async.engine.intake.admission import Admission
from mrecordlog_async.engine.intake.commands import AppendGroup, Command
from mrecordlog_async.engine.running import Engine
from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format import frame
from mrecordlog_async.format.frame import BLOCK_BYTES, encode_frames, read_frame
from mrecordlog_async.format.header import HEADER_BYTES, Closed, decode_closed, encode_closed
from mrecordlog_async.format.parse import SegmentParser
from mrecordlog_async.format.record import Commit, LogRecord, Many, decode_parts, encode_commit
from mrecordlog_async.format.table import Table, TableEntry, encode_table
from mrecordlog_async.memory.queue import QUEUE_OVERHEAD_BYTES
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.recovery import torn_or_damaged
from mrecordlog_async.recovery.cleanup import zero_tail
from mrecordlog_async.recovery.follower import Follower
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.recovery.replay import Replay
from mrecordlog_async.recovery.torn_or_damaged import SegmentEnd
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import LogEnd, SegmentFile

from .damage import Files, Intact, on_disk
from .driver import DIRECTORY, Run, without_chance
from .explore import Explorer
from .histories import CASES, Case
from .inside import LOG_ID
from .judge import state_in
from .seeded_bugs import SeededBug, crash, damage, fail
from .test_damage import several_segments
from .test_process import child_holds_nothing

# What notices them.


def die_and_write(name: str, every: int = 1) -> None:
    """Let the process die at many moments of a history, let the next one write, then cut the power."""
    case = CASES[name]
    with case.sizes():
        Explorer(deep_every=0, subsets=0, kill_every=1).explore(case.run(), every=every)


def goes_through(name: str, *more_bytes: int) -> None:
    """Run a history on disks of several sizes. Truncates, deletes and its last append must succeed."""
    case = CASES[name]
    for more in more_bytes:
        assert case.capacity_bytes is not None
        calls = replace(case, capacity_bytes=case.capacity_bytes + more).run(moments=False).model.calls
        assert {call.outcome for call in calls if call.kind in ("truncate", "delete")} == {"answered"}, more
        assert calls[-1].outcome == "answered", f"the log did not take appends again: {calls[-1].error}"


def answers(name: str) -> None:
    """Run a history whose calls must all end with the expected results."""
    CASES[name].run(moments=False).model.states()


def segments_of_two_logs() -> None:
    """Replace a segment by one from a diverged copy of the log, which has the same identity."""

    def history(name: str) -> Case:
        async def made(run: Run) -> None:
            await run.open()
            await run.create(name)
            for size in (20_000, 20_000, 300):
                await run.append(name, size)

        return Case(made)

    first, second = (Intact.of(history(name).run(moments=False), closed=True) for name in "ab")
    with without_chance():
        oldest = min(first.ends)
        refuse({**first.files, oldest: second.files[oldest]})


def closed_behind_another_batch() -> None:
    """Write a `CLOSED` with the right offset and another batch."""
    intact = Intact.of(Case(several_segments).run(moments=False), closed=True)
    closed = decode_closed(intact.files["CLOSED"])
    with without_chance():
        refuse({**intact.files, "CLOSED": encode_closed(replace(closed, last_batch=closed.last_batch + 1))})


def refuse(files: Files) -> None:
    """Open a log that must be refused."""
    try:
        ReadOnlyLog.open(DIRECTORY, filesystem=on_disk(files)).close()
    except CorruptionError:
        return
    raise AssertionError("it opens")


def batch_of_another_place() -> None:
    """Write a whole COMMIT at the expected offset, of a batch that began elsewhere: a part of its batch is missing."""
    parser = SegmentParser(LOG_ID, 0, 1)
    out: list[Any] = [bytes(HEADER_BYTES)]
    at = encode_frames(encode_table(Table(5, (TableEntry(1, "a", 0, 0),))), HEADER_BYTES, parser._seed, out)
    commit = Commit(LOG_ID, 0, 1, 0, at - 9, 0, 0)
    encode_frames([encode_commit(commit)], at, parser._seed, out)
    assert not list(parser.feed(b"".join(out), 0)), "a batch that lacks its beginning was taken"


def frames_that_moved() -> None:
    """Move frames by round distances. A frame must be valid only at its own offset."""
    out: list[Any] = []
    encode_frames([b"payload"], 512, 7, out)
    data = b"".join(out)
    assert read_frame(memoryview(data), 512, 0, 7) is not None
    for offset in (0, 1_024, 512 + BLOCK_BYTES, 512 + 4 * BLOCK_BYTES, 512 + (1 << 32)):
        assert read_frame(memoryview(data), offset, 0, 7) is None, f"valid at {offset} as well"


def another_log_in_its_place() -> None:
    """Put another log in the place of one without batches, whose end says nothing. A follower must show it, whole."""

    async def no_batch(run: Run) -> None:
        await run.open()

    async def two_batches(run: Run) -> None:
        await run.open()
        await run.create("a")
        await run.append("a", 40)

    runs = [Case(no_batch).run(moments=False)]
    with patch("tests.faults.inside.LOG_ID", b"another log's id"):
        runs.append(Case(two_batches).run(moments=False))
    one, other = ({n: data for n, data in run.disk.content(DIRECTORY).items() if n != "LOCK"} for run in runs)
    disk = on_disk(dict(one))
    reader = ReadOnlyLog.open(DIRECTORY, filesystem=disk)
    for name, data in other.items():
        disk.put(f"{DIRECTORY}/{name}", data)
    reader.refresh()
    assert reader.recovered.log_id == b"another log's id", "the follower did not notice"
    assert state_in(reader) == state_in(ReadOnlyLog.open(DIRECTORY, filesystem=disk))


# The bugs.


class _NoSync(OsFileSystem):
    """The files of another `FileSystem`, but without its sync."""

    def __init__(self, files: Any) -> None:
        self.read, self.write = files.read, files.write  # type: ignore[method-assign]  # all that zero_tail calls

    def sync(self, handle: int) -> None:
        """Return without syncing."""


def tail_zeroed_and_not_synced() -> AbstractContextManager[Any]:
    def zero(file: SegmentFile, contents: RecoveredLog) -> None:
        zero_tail(SegmentFile(_NoSync(file.files), file.path, file.handle, file.reserved_bytes), contents)

    return patch.object(opening, "zero_tail", zero)


def interval_restarts_with_every_batch() -> AbstractContextManager[Any]:
    def arm_sync(self: Timers, seconds: float) -> None:
        if self._sync is not None:
            self._sync.cancel()
        self._sync = self._loop.call_later(seconds, self._on_sync)

    return patch.object(Timers, "arm_sync", arm_sync)


def cancelled_record_leaves_its_queue_behind() -> AbstractContextManager[Any]:
    original = AppendGroup.withdrawn

    def withdrawn(self: AppendGroup) -> bool:
        queues = self.queues
        done = original(self)
        self.queues = queues
        return done

    return patch.object(AppendGroup, "withdrawn", withdrawn)


def memory_of_older_segments_not_counted() -> AbstractContextManager[Any]:
    original = Replay.begin

    def begin(self: Replay, name: str, table: Table) -> None:
        original(self, name, table)
        assert self.queues is not None
        for queue in self.queues:
            more = queue.memory_bytes - QUEUE_OVERHEAD_BYTES
            queue.memory_bytes -= more
            self.queues.settling.grown_bytes -= more

    return patch.object(Replay, "begin", begin)


def appends_live_on_the_reserve() -> AbstractContextManager[Any]:
    original = DiskSpace.reserve

    def reserve(self: DiskSpace, end: int, request: CommitRequest) -> None:
        try:
            original(self, end, request)
        except OSError:
            self._file.reserve(end, end)

    return patch.object(DiskSpace, "reserve", reserve)


def held_appends_forgotten_at_close() -> AbstractContextManager[Any]:
    original = Admission.take_all

    def take_all(self: Admission) -> Iterator[Command]:
        self._parked = []
        return original(self)

    return patch.object(Admission, "take_all", take_all)


def forked_child_keeps_everything() -> AbstractContextManager[Any]:
    def disown(self: Engine) -> None:
        self._foreign = True

    return patch.object(Engine, "disown", disown)


def last_batch_kept_in_the_process() -> AbstractContextManager[Any]:
    write, sync = SegmentFile.write, SegmentFile.sync
    kept: dict[int, tuple[Sequence[Any], int, bool]] = {}

    def flush(self: SegmentFile) -> None:
        if id(self) in kept:
            buffers, offset, durable = kept.pop(id(self))
            write(self, buffers, offset, durable=durable)

    def lazy_write(self: SegmentFile, buffers: Sequence[Any], offset: int, *, durable: bool = False) -> None:
        flush(self)
        kept[id(self)] = [b"".join(buffers)], offset, durable

    def full_sync(self: SegmentFile) -> None:
        flush(self)
        sync(self)

    @contextmanager
    def bug() -> Iterator[None]:
        with patch.object(SegmentFile, "write", lazy_write), patch.object(SegmentFile, "sync", full_sync):
            yield

    return bug()


def commits_vouch_for_one_batch_less() -> AbstractContextManager[Any]:
    def vouch_for_less(original: Any) -> Any:
        def encode(self: Journal, *arguments: Any) -> Any:
            at = self.end
            durable, at.durable_batch = at.durable_batch, max(at.durable_batch - 1, 0)
            try:
                return original(self, *arguments)
            finally:
                at.durable_batch = durable

        return encode

    # The writer's task encodes with the first, its first case with the second.
    return patch.multiple(Journal, _encode=vouch_for_less(Journal._encode), encode=vouch_for_less(Journal.encode))


def tables_not_compared() -> AbstractContextManager[Any]:
    original = Replay.begin

    def begin(self: Replay, name: str, table: Table) -> None:
        if self.queues is None:
            original(self, name, table)

    return patch.object(Replay, "begin", begin)


def batch_number_of_closed_ignored() -> AbstractContextManager[Any]:
    original = torn_or_damaged._check_closed

    def check_closed(end: SegmentEnd, closed: Closed) -> None:
        original(end, replace(closed, last_batch=end.due_batch - 1))

    return patch.object(torn_or_damaged, "_check_closed", check_closed)


def place_of_a_batch_ignored() -> AbstractContextManager[Any]:
    original = SegmentParser._add

    def add(self: SegmentParser, parts: Any) -> Any:
        end = self.end
        record = decode_parts(parts)
        if type(record) is Commit:
            self.end = record.batch_offset
        batch = original(self, parts)
        if batch is None:
            self.end = end
        return batch

    return patch.object(SegmentParser, "_add", add)


def checksum_bound_to_the_sector_only() -> AbstractContextManager[Any]:
    class Short:
        def pack(self, offset: int, length: int, kind: int) -> bytes:
            return frame_checked.pack(offset % 512, length, kind)

    frame_checked = frame._CHECKED
    return patch.object(frame, "_CHECKED", Short())


def follower_trusts_any_header() -> AbstractContextManager[Any]:
    return patch.object(Follower, "_check_header", lambda self, data: None)


def spare_too_small_for_new_queues() -> AbstractContextManager[Any]:
    original = DiskSpace.prepare_spare
    return patch.object(DiskSpace, "prepare_spare", lambda self, more_table_bytes=0: original(self))


def later_records_overtake_one_that_goes_back() -> AbstractContextManager[Any]:
    def put_back(self: Admission, group: AppendGroup) -> None:
        self._pending.append(group)
        self.sleep.leave_to_writer()

    return patch.object(Admission, "put_back", put_back)


def single_records_never_in_doubt() -> AbstractContextManager[Any]:
    original = UnsyncedChanges.add

    def add(self: UnsyncedChanges, records: Iterable[LogRecord], end: LogEnd) -> None:
        original(self, [record for record in records if type(record) is not Many], end)

    return patch.object(UnsyncedChanges, "add", add)


SURVIVORS = {
    bug.bug.__name__: bug
    for bug in (
        SeededBug(tail_zeroed_and_not_synced, crash("torn", deep_every=0)),
        SeededBug(interval_restarts_with_every_batch, crash("interval, loaded", deep_every=0)),
        SeededBug(cancelled_record_leaves_its_queue_behind, lambda: answers("groups")),
        SeededBug(memory_of_older_segments_not_counted, crash("rolls", deep_every=0, every=9)),
        SeededBug(appends_live_on_the_reserve, lambda: goes_through("reserve", 0)),
        SeededBug(held_appends_forgotten_at_close, lambda: answers("waits for disk")),
        SeededBug(forked_child_keeps_everything, lambda: child_holds_nothing(bug=True)),
        SeededBug(last_batch_kept_in_the_process, lambda: die_and_write("never", every=5)),
        SeededBug(commits_vouch_for_one_batch_less, damage(Case(several_segments))),
        SeededBug(tables_not_compared, segments_of_two_logs),
        SeededBug(batch_number_of_closed_ignored, closed_behind_another_batch),
        SeededBug(place_of_a_batch_ignored, batch_of_another_place),
        SeededBug(checksum_bound_to_the_sector_only, frames_that_moved),
        SeededBug(follower_trusts_any_header, another_log_in_its_place),
        SeededBug(single_records_never_in_doubt, fail("never, singles", "sync")),
        SeededBug(later_records_overtake_one_that_goes_back, lambda: answers("linked in flight")),
        SeededBug(spare_too_small_for_new_queues, lambda: goes_through("reserve of tables", *range(0, 40_000, 2_000))),
    )
}
"""Every survivor by its name."""
