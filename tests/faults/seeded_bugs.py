"""Bugs that are patched into the log on purpose, each with the part of the suite that must find it.

Every one of them was once in a log that people trusted. The product has no switches for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from mrecordlog_async.engine.commit import batch, disk_space
from mrecordlog_async.engine.commit import journal as journal_module
from mrecordlog_async.engine.commit import open as opening
from mrecordlog_async.engine.commit.batch import CommitRequest, Roll
from mrecordlog_async.engine.commit.dead_segments import DeadSegments
from mrecordlog_async.engine.commit.disk_space import DiskSpace
from mrecordlog_async.engine.commit.journal import Journal
from mrecordlog_async.engine.commit.storing import BatchStore
from mrecordlog_async.engine.commit.thread import FileTurns
from mrecordlog_async.engine.commit.upkeep import Upkeep
from mrecordlog_async.engine.commit.writer import SmallBatches
from mrecordlog_async.engine.intake.commands import Reserve
from mrecordlog_async.engine.intake.controls import AttachConsumer, FenceHolders, MoveConsumer
from mrecordlog_async.engine.planning import consumer as consumer_planning
from mrecordlog_async.engine.planning.draft import CommandOutcome, Draft, QueueView
from mrecordlog_async.errors import ConsumerFencedError, CorruptionError
from mrecordlog_async.format import frame, parse
from mrecordlog_async.format.controls import ConsumerState, SetConsumer
from mrecordlog_async.format.frame import Buffer, encode_frames, read_frame
from mrecordlog_async.format.parse import ParsedBatch, SegmentParser
from mrecordlog_async.format.record import Commit, decode_record
from mrecordlog_async.format.table import Table, encode_table
from mrecordlog_async.maintenance import scan
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.options import Limits
from mrecordlog_async.recovery import cleanup, follower, recovery, torn_or_damaged
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.storage import directory as storage_directory
from mrecordlog_async.storage import locked_directory
from mrecordlog_async.storage.direct import DirectWriter, Staging
from mrecordlog_async.storage.directory import Listing, LogDirectory
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES
from mrecordlog_async.storage.locked_directory import LockedDirectory
from mrecordlog_async.storage.segment import SegmentFile, segment_name
from tests.deep.faults import test_beside_a_writer

from .consumer_histories import CONSUMER_CASES
from .damage import Intact, damages
from .disk import Disk
from .disk_thread import ModelDiskThread
from .disk_thread_histories import STATED_IN_FLIGHT
from .driver import DIRECTORY, SEGMENT_BYTES, Run, without_chance
from .explore import Explorer, Tally
from .histories import BLOCK_BYTES, CASES, COMMIT_OFFSET, Case, full_disk, log_end
from .inject import faults, inject
from .test_damage import _check, several_segments

Hunt = Callable[[], None]


class SeededBug(NamedTuple):
    """A bug, and the hunt that must raise AssertionError while the bug is patched in."""

    bug: Callable[[], AbstractContextManager[Any]]
    hunt: Hunt


# Small versions of what the suite does.


def crash(*names: str, deep_every: int = 60, every: int = 1) -> Hunt:
    """Explore the crash states of some histories."""

    def hunt() -> None:
        for name in names:
            Explorer(deep_every=deep_every, subsets=2).explore((CASES | CONSUMER_CASES)[name].run(), every=every)

    return hunt


def fail(name: str, *calls: str) -> Hunt:
    """Let every call of these names fail."""

    def hunt() -> None:
        names = CASES[name].run(moments=False).disk.call_names
        for fault in faults(names):
            if names[fault.at - 1] in calls:
                inject(CASES[name], fault, Explorer())

    return hunt


def damage(case: Case) -> Hunt:
    """Damage the log that a history leaves, everywhere."""

    def hunt() -> None:
        with without_chance():
            intact = Intact.of(case.run(moments=False), closed=False)
            for damaged in damages(intact):
                _check(damaged, intact.verdict(damaged))

    return hunt


def room() -> None:
    """Fill the disk. Appends must be refused, truncates must succeed, and the log must not fail."""
    run = Case(full_disk, early_roll_bytes=4_096, may_refuse=True, capacity_bytes=200_000).run(moments=False)
    assert any(call.outcome == "absent" for call in run.model.calls), "the disk was never full"
    assert run.model.calls[-1].outcome == "answered", "the log did not survive a full disk"


def room_for_truncates() -> None:
    """Fill the reserve with attaches. What truncates must succeed after them."""
    run = CONSUMER_CASES["reserve of consumers"].run(moments=False)
    refused = [call for call in run.model.calls if call.kind == "attach" and call.outcome == "absent"]
    assert refused, "attaching was never refused"
    assert run.model.calls[-1].outcome == "answered", "the log did not survive a full disk"


def read_beside_a_writer() -> None:
    """Let a writer use the last segment again while a reader reads it."""
    test_beside_a_writer.test_reader_whose_last_segment_becomes_another_one_lists_again(Tally())


def state_in_flight() -> None:
    """Have the log's thread state the end while the disk thread writes."""
    for case in STATED_IN_FLIGHT.values():
        Explorer(deep_every=0, subsets=2).explore(case.run())


def link_and_append() -> None:
    """Give the segment a second name, then append. What the other name shows must stay as it is."""

    async def history(run: Run) -> None:
        await run.open()
        await run.create("a")
        await run.idle(0.1)  # the writer sleeps
        await run.append("a", 300)
        run.disk.link(f"{DIRECTORY}/{segment_name(0)}", "/data/kept")
        run.before = {"kept": run.disk.content("/data")["kept"]}
        await run.append("a", 500)

    run = Case(history, has_thread=True).run(moments=False)
    assert run.disk.content("/data")["kept"] == run.before["kept"], "bytes of another name were written"


async def commit_at_the_end_of_a_block(run: Run) -> None:
    """Two batches; the COMMIT of the second would cross the block's end."""
    await run.open()
    await run.create("a")
    await run.append("a", 500)
    assert run.log is not None
    end = log_end(run)
    await run.append("a", BLOCK_BYTES - end - 30 - COMMIT_OFFSET)


# The bugs.


def no_fsync() -> AbstractContextManager[Any]:
    return patch.object(SegmentFile, "sync", lambda self: None)


def no_fsync_of_the_directory() -> AbstractContextManager[Any]:
    return patch.object(disk_space, "sync_directory", lambda directory: None)


def parent_directory_not_synced() -> AbstractContextManager[Any]:
    return patch.object(storage_directory, "sync_directory", lambda files, path: None)


def acknowledged_early() -> AbstractContextManager[Any]:
    original = BatchStore.commit

    async def commit(self: BatchStore, batch: Any, roll: Roll = Roll.IF_FULL) -> Any:
        self.finish_calls([outcome for outcome in batch.outcomes if outcome.dropped_by < 0])
        return await original(self, batch, roll)

    return patch.object(BatchStore, "commit", commit)


def small_batch_acknowledged_early() -> AbstractContextManager[Any]:
    original = SmallBatches._take

    def take(self: SmallBatches) -> bool:
        taken = original(self)
        if self.group is not None:
            self.group.acknowledge(self._first_position)
        return taken

    return patch.object(SmallBatches, "_take", take)


def disk_thread_acknowledged_early() -> AbstractContextManager[Any]:
    return small_batch_acknowledged_early()


def small_batch_not_synced() -> AbstractContextManager[Any]:
    original = Journal.commit_alone

    def commit_alone(self: Journal, *arguments: Any) -> Any:
        file = self._file

        def write(buffers: Any, offset: int, *, durable: bool) -> None:
            SegmentFile.write(file, buffers, offset, durable=False)

        with patch.object(file, "sync", lambda: None), patch.object(file, "write", write):
            return original(self, *arguments)

    return patch.object(Journal, "commit_alone", commit_alone)


def small_write_not_settled() -> AbstractContextManager[Any]:
    """A job of the log's thread begins although the disk thread writes, and the journal does not know the outcome."""

    def begin_job(self: FileTurns) -> None:
        self._has_job = True

    return patch.object(FileTurns, "begin_job", begin_job)


def small_write_reported_without_its_result() -> AbstractContextManager[Any]:
    """The loop hears the bell, and does not look for the result."""
    return patch.object(FileTurns, "settled", lambda self: None)


def segment_of_the_disk_thread_kept_at_a_roll() -> AbstractContextManager[Any]:
    original = Journal._lend_to_disk_thread

    def lend(self: Journal, file: SegmentFile | None) -> None:
        if self.end.last_batch == self._queues.last_batch == 0:  # at the opening alone
            original(self, file)

    return patch.object(Journal, "_lend_to_disk_thread", lend)


def refused_small_write_taken_for_a_stored_one() -> AbstractContextManager[Any]:
    original = ModelDiskThread.wait

    def wait(self: ModelDiskThread) -> Any:
        found = original(self)
        return found and (True, *found[1:])

    return patch.object(ModelDiskThread, "wait", wait)


def failed_small_write_taken_for_a_stored_one() -> AbstractContextManager[Any]:
    original = ModelDiskThread.wait

    def wait(self: ModelDiskThread) -> Any:
        found = original(self)
        return found and (found[0], 0, found[2])

    return patch.object(ModelDiskThread, "wait", wait)


def last_block_not_repeated_by_the_disk_thread() -> AbstractContextManager[Any]:
    original = DirectWriter.note_written

    def note(self: DirectWriter, frames: bytes) -> None:
        original(self, frames)
        self.kept = bytes(len(self.kept))

    return patch.object(DirectWriter, "note_written", note)


def disk_thread_writes_without_a_sync() -> AbstractContextManager[Any]:
    def write(self: ModelDiskThread, handle: int, buffers: Any, offset: int) -> int:
        return self._disk.write(handle, buffers, offset)

    return patch.object(ModelDiskThread, "_call", write)


def disk_thread_does_not_look_at_links() -> AbstractContextManager[Any]:
    return patch.object(ModelDiskThread, "_links", lambda self, handle: 1)


def disk_thread_takes_a_short_write_for_a_whole_one() -> AbstractContextManager[Any]:
    def write(self: ModelDiskThread, handle: int, buffers: Any, offset: int) -> int:
        self._disk.write_durable(handle, buffers, offset)
        return sum(map(len, buffers))

    return patch.object(ModelDiskThread, "_call", write)


def lock_kept_by_the_disk_thread() -> AbstractContextManager[Any]:
    """The thread does not end with the log, and keeps its duplicates."""
    return patch.object(ModelDiskThread, "end", lambda self: None)


def stale_tail_not_zeroed() -> AbstractContextManager[Any]:
    return patch.object(opening, "zero_tail", lambda file, contents: None)


def frames_of_any_segment_count() -> AbstractContextManager[Any]:
    """Neither checksums nor COMMITs tell the segments of a log apart."""
    original_add, original_seed = SegmentParser._add, frame.segment_seed

    def add(self: SegmentParser, parts: Any) -> ParsedBatch | None:
        record = decode_record(b"".join(parts))
        self.segment = record.segment if type(record) is Commit else self.segment
        return original_add(self, parts)

    stack = contextlib.ExitStack()
    for room in (parse, journal_module, locked_directory, scan, follower):
        stack.enter_context(patch.object(room, "segment_seed", lambda log_id, segment: original_seed(log_id, 0)))
    stack.enter_context(patch.object(SegmentParser, "_add", add))
    return stack


def linked_segments_used_again() -> AbstractContextManager[Any]:
    return patch.object(SegmentFile, "is_shared", lambda self: False)


def header_not_read_again() -> AbstractContextManager[Any]:
    return patch.object(LogDirectory, "was_rewritten", lambda self, handle, number, size: False)


def direct_writes_taken_for_durable_ones() -> AbstractContextManager[Any]:
    original = DirectWriter.write

    def write(self: DirectWriter, buffers: Any, offset: int, *, durable: bool) -> bool:
        original(self, buffers, offset, durable=durable)
        return True

    return patch.object(DirectWriter, "write", write)


def several_direct_writes_left_unsynced() -> AbstractContextManager[Any]:
    original = DirectWriter.write

    def write(self: DirectWriter, buffers: Any, offset: int, *, durable: bool) -> bool:
        return original(self, buffers, offset, durable=durable) or durable

    return patch.object(DirectWriter, "write", write)


def last_block_not_repeated() -> AbstractContextManager[Any]:
    original = DirectWriter._write_staged

    def write(self: DirectWriter, size: int, durable: bool) -> None:
        original(self, size, durable)
        self.kept = bytes(len(self.kept))

    return patch.object(DirectWriter, "_write_staged", write)


def last_block_of_an_opened_log_not_read() -> AbstractContextManager[Any]:
    def read(self: DirectWriter) -> bytes:
        return bytes(self.end % DIRECT_BLOCK_BYTES)

    return patch.object(DirectWriter, "_read_last_block", read)


def pieces_not_waited_for() -> AbstractContextManager[Any]:
    """The sync comes before the pieces have ended: their COMMIT may be on the medium without the rest."""

    def finish(self: Staging, files: Any) -> list[Any]:
        under_way, self._under_way = self._under_way, []
        return [(piece, piece[1] - piece[0]) for piece in under_way]

    return patch.object(Staging, "finish_writes", finish)


def error_of_a_piece_swallowed() -> AbstractContextManager[Any]:
    original = Staging.finish_writes

    def finish(self: Staging, files: Any) -> list[Any]:
        ended = original(self, files)
        return [(piece, taken if taken >= 0 else piece[1] - piece[0]) for piece, taken in ended]

    return patch.object(Staging, "finish_writes", finish)


def short_piece_taken_for_a_whole_one() -> AbstractContextManager[Any]:
    original = Staging.finish_writes

    def finish(self: Staging, files: Any) -> list[Any]:
        return [(piece, taken if taken < 0 else piece[1] - piece[0]) for piece, taken in original(self, files)]

    return patch.object(Staging, "finish_writes", finish)


def buffer_used_again_while_pieces_are_under_way() -> AbstractContextManager[Any]:
    """A batch that does not fit begins at the start of the buffer again, and does not wait for the disk."""
    original = DirectWriter._finish_pieces

    def finish(self: DirectWriter, at: int, size: int) -> None:
        if size < len(self._staging.view):
            original(self, at, size)
        else:
            self._start_piece(at, size)
            self._note_written(size)

    return patch.object(DirectWriter, "_finish_pieces", finish)


def pieces_taken_for_durable_ones() -> AbstractContextManager[Any]:
    original = SegmentFile.write_in_pieces

    def write(self: SegmentFile, *arguments: Any) -> int:
        end = original(self, *arguments)
        self._is_synced = True
        return end

    return patch.object(SegmentFile, "write_in_pieces", write)


def piece_begun_before_its_block_is_full() -> AbstractContextManager[Any]:
    """A piece ends with the step, in the middle of a block, which the next piece writes too."""
    original = DirectWriter._start_piece

    def start(self: DirectWriter, at: int, stop: int) -> None:
        original(self, max(at - DIRECT_BLOCK_BYTES, 0), stop)

    return patch.object(DirectWriter, "_start_piece", start)


def writes_under_way_left_at_close() -> AbstractContextManager[Any]:
    return patch.object(Staging, "close_writes", lambda self, files: None)


def unlinked_before_the_commit_that_justifies_it() -> AbstractContextManager[Any]:
    def reclaimable(self: Journal) -> bool:
        oldest = self._queues.pins.oldest()
        older = self.space.complete
        return bool(older) and older[0][0] < (self.end.segment if oldest is None else oldest)

    def must_name(self: Upkeep, oldest: int | None) -> bool:
        return False

    original = DeadSegments.reclaim

    def reclaim(self: DeadSegments, durable_oldest: int, recycle: bool = True) -> int:
        space = self._space
        oldest = space._queues.pins.oldest()
        return original(self, space._end.segment if oldest is None else oldest, recycle)

    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(Journal, "reclaimable", reclaimable))
    stack.enter_context(patch.object(DeadSegments, "reclaim", reclaim))
    stack.enter_context(patch.object(Upkeep, "_must_name_oldest", must_name))
    return stack


def recycled_before_its_death_is_durable() -> AbstractContextManager[Any]:
    return unlinked_before_the_commit_that_justifies_it()


def failed_fsync_tried_again() -> AbstractContextManager[Any]:
    original = SegmentFile.sync

    def sync(self: SegmentFile) -> None:
        try:
            original(self)
        except OSError:
            original(self)

    return patch.object(SegmentFile, "sync", sync)


def cache_believed_after_a_failed_fsync() -> AbstractContextManager[Any]:
    return patch.object(Disk, "drop_cache", lambda self, handle: None)


def damage_cut_like_a_torn_tail() -> AbstractContextManager[Any]:
    return patch.object(torn_or_damaged, "find_commits", lambda *arguments: iter(()))


def bad_frames_skipped() -> AbstractContextManager[Any]:
    original_read, original_add = read_frame, SegmentParser._add

    def read(piece: memoryview, base: int, at: int, seed: int) -> Any:
        frame = original_read(piece, base, at, seed)
        if frame is None and any(piece[at:]):
            while frame is None and at < len(piece):
                at += 1
                frame = original_read(piece, base, at, seed)
        return frame

    def add(self: SegmentParser, parts: Any) -> ParsedBatch | None:
        record = decode_record(b"".join(parts))
        if type(record) is Commit:
            self.due_batch, self.end = record.batch, record.batch_offset
        return original_add(self, parts)

    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(parse, "read_frame", read))
    stack.enter_context(patch.object(SegmentParser, "_add", add))
    return stack


def part_of_a_batch_applied() -> AbstractContextManager[Any]:
    original = SegmentParser.feed

    def feed(self: SegmentParser, piece: Any, base: int) -> Iterator[ParsedBatch]:
        yield from original(self, piece, base)
        if self.stopped and self._records:
            commit = Commit(self.log_id, self.segment, self.due_batch, 0, self.end, 0, 0)
            records, self._records = self._records, []
            yield ParsedBatch(records, commit, self.end)

    return patch.object(SegmentParser, "feed", feed)


def old_segment_not_synced_on_roll() -> AbstractContextManager[Any]:
    original = Journal.roll

    def roll(self: Journal, oldest_segment: int | None) -> None:
        with patch.object(self, "sync", lambda: 0.0):
            original(self, oldest_segment)

    return patch.object(Journal, "roll", roll)


def header_published_before_its_file_is_durable() -> AbstractContextManager[Any]:
    return patch.object(disk_space, "sync_file", lambda file: None)


def queue_id_reused() -> AbstractContextManager[Any]:
    def encoded_table(self: Queues, pause: object = None) -> tuple[Buffer, ...]:
        entries = self.table().entries
        return encode_table(Table(max((entry.id + 1 for entry in entries), default=1_000), entries))

    return patch.object(Queues, "encoded_table", encoded_table)


def fold_that_looks_at_records() -> AbstractContextManager[Any]:
    original = Queue.append

    def append(self: Queue, segment: int, run: Any, continues: bool = False, tick: int = 0) -> int:
        if not self.records and run.first_position >= self.next_position:
            self.first_position = run.first_position
        return original(self, segment, run, continues, tick)

    return patch.object(Queue, "append", append)


def commit_split_over_a_block() -> AbstractContextManager[Any]:
    def encode(body: bytes, offset: int, seed: int, out: Any) -> int:
        return encode_frames([body], offset, seed, out)

    return patch.object(batch, "encode_unsplit", encode)


def closed_removed_without_fsync() -> AbstractContextManager[Any]:
    def take_over(directory: LockedDirectory, contents: RecoveredLog) -> SegmentFile:
        path = directory.path_of(contents.end.segment)
        file = SegmentFile(directory.files, path, directory.files.open(path), contents.end.offset)
        cleanup.zero_tail(file, contents)
        if contents.closed:
            directory.files.unlink(directory.log.closed_path)
        return file

    return patch.object(opening, "_take_over", take_over)


def unsynced_batches_called_durable() -> AbstractContextManager[Any]:
    original = Journal._encode

    def encode(self: Journal, *arguments: Any) -> Any:
        at = self.end
        durable, at.durable_batch = at.durable_batch, at.last_batch
        try:
            return original(self, *arguments)
        finally:
            at.durable_batch = durable

    return patch.object(Journal, "_encode", encode)


def shown_before_it_is_durable() -> AbstractContextManager[Any]:
    return patch.object(recovery, "sync_for_readers", lambda files, handle: None)


def space_not_reserved() -> AbstractContextManager[Any]:
    def reserve(self: SegmentFile, end: int, limit: int) -> None:
        self.reserved_bytes = max(self.reserved_bytes, end)

    return patch.object(SegmentFile, "reserve", reserve)


def damage_refused_after_touching() -> AbstractContextManager[Any]:
    @contextmanager
    def bug() -> Iterator[None]:
        original = recovery.read_log

        def read_log(directory: LogDirectory, listing: Listing, **options: Any) -> Any:
            try:
                return original(directory, listing, **options)
            except CorruptionError:
                directory.files.unlink(directory.path_of(listing.segments[-1]))
                raise

        with patch.object(opening, "read_log", read_log):
            yield

    return bug()


def epoch_used_twice() -> AbstractContextManager[Any]:
    original = Queues._set_consumer

    def set_consumer(self: Queues, record: SetConsumer) -> None:
        following = self.next_queue_id
        original(self, record)
        self.next_queue_id = following

    return patch.object(Queues, "_set_consumer", set_consumer)


def attached_before_it_is_durable() -> AbstractContextManager[Any]:
    def attach(draft: Draft, call: AttachConsumer) -> None:
        must_sync = draft.plan.must_sync
        consumer_planning.plan_attach(draft, call)
        draft.plan.must_sync = must_sync

    return patch.dict("mrecordlog_async.engine.planning.plan._DECIDE", {AttachConsumer: attach})


def holders_survive_a_power_cut() -> AbstractContextManager[Any]:
    original = Draft.__init__

    def init(self: Draft, queues: Queues, limits: Limits, epochs_from: int = 0, ids_from: int = 0) -> None:
        original(self, queues, limits, ids_from=ids_from)

    return patch.object(Draft, "__init__", init)


def holders_survive_the_restart_after_next() -> AbstractContextManager[Any]:
    def fence(draft: Draft, call: FenceHolders) -> None:
        draft.plan.outcomes.append(CommandOutcome(call))

    return patch.dict("mrecordlog_async.engine.planning.plan._DECIDE", {FenceHolders: fence})


def fenced_holders_move() -> AbstractContextManager[Any]:
    original = consumer_planning._refused_move

    def refused(draft: Draft, call: MoveConsumer, view: QueueView, state: ConsumerState | None) -> Any:
        error = original(draft, call, view, state)
        return None if isinstance(error, ConsumerFencedError) else error

    return patch.object(consumer_planning, "_refused_move", refused)


def attaching_uses_the_whole_reserve() -> AbstractContextManager[Any]:
    original = DiskSpace.reserve

    def reserve(self: DiskSpace, end: int, request: CommitRequest) -> None:
        if request.reserve is Reserve.HALF:
            request = request._replace(reserve=Reserve.ALL)
        original(self, end, request)

    return patch.object(DiskSpace, "reserve", reserve)


BUGS = {
    bug.bug.__name__: bug
    for bug in (
        SeededBug(no_fsync, crash("concurrent")),
        SeededBug(no_fsync_of_the_directory, crash("rolls")),
        SeededBug(parent_directory_not_synced, crash("concurrent")),
        SeededBug(acknowledged_early, crash("concurrent")),
        SeededBug(small_batch_acknowledged_early, crash("few callers")),
        SeededBug(disk_thread_acknowledged_early, crash("few callers, thread")),
        SeededBug(small_batch_not_synced, crash("few callers")),
        SeededBug(small_write_not_settled, state_in_flight),
        SeededBug(small_write_reported_without_its_result, crash("few callers, thread")),
        SeededBug(segment_of_the_disk_thread_kept_at_a_roll, crash("few callers, thread")),
        SeededBug(refused_small_write_taken_for_a_stored_one, fail("few callers, thread", "links")),
        SeededBug(failed_small_write_taken_for_a_stored_one, fail("few callers, thread", "write_durable")),
        SeededBug(last_block_not_repeated_by_the_disk_thread, crash("few callers, thread")),
        SeededBug(disk_thread_writes_without_a_sync, crash("few callers, thread")),
        SeededBug(disk_thread_does_not_look_at_links, link_and_append),
        SeededBug(disk_thread_takes_a_short_write_for_a_whole_one, fail("few callers, thread", "write_durable")),
        SeededBug(lock_kept_by_the_disk_thread, crash("reopened, thread")),
        SeededBug(stale_tail_not_zeroed, crash("concurrent")),
        SeededBug(frames_of_any_segment_count, crash("recycles", every=3)),
        SeededBug(linked_segments_used_again, crash("copy outlives", every=5)),
        SeededBug(header_not_read_again, read_beside_a_writer),
        SeededBug(recycled_before_its_death_is_durable, crash("recycles", every=3)),
        SeededBug(unlinked_before_the_commit_that_justifies_it, crash("rolls", every=3)),
        SeededBug(direct_writes_taken_for_durable_ones, crash("concurrent")),
        SeededBug(several_direct_writes_left_unsynced, crash("staged")),
        SeededBug(pieces_not_waited_for, crash("in pieces")),
        SeededBug(error_of_a_piece_swallowed, fail("in pieces", "land")),
        SeededBug(short_piece_taken_for_a_whole_one, fail("in pieces", "land")),
        SeededBug(buffer_used_again_while_pieces_are_under_way, crash("in pieces, stepping")),
        SeededBug(pieces_taken_for_durable_ones, crash("in pieces")),
        SeededBug(piece_begun_before_its_block_is_full, crash("in pieces")),
        SeededBug(writes_under_way_left_at_close, fail("in pieces", "finish_writes")),
        SeededBug(last_block_not_repeated, crash("concurrent")),
        SeededBug(last_block_of_an_opened_log_not_read, crash("reopened")),
        SeededBug(failed_fsync_tried_again, fail("concurrent, cached", "sync")),
        SeededBug(cache_believed_after_a_failed_fsync, fail("concurrent, cached", "sync")),
        SeededBug(damage_cut_like_a_torn_tail, damage(Case(several_segments))),
        SeededBug(bad_frames_skipped, damage(Case(several_segments))),
        SeededBug(part_of_a_batch_applied, crash("concurrent")),
        SeededBug(old_segment_not_synced_on_roll, crash("never, rolls")),
        SeededBug(header_published_before_its_file_is_durable, crash("rolls")),
        SeededBug(queue_id_reused, crash("recreated", every=3)),
        SeededBug(fold_that_looks_at_records, crash("positions")),
        SeededBug(commit_split_over_a_block, damage(Case(commit_at_the_end_of_a_block))),
        SeededBug(closed_removed_without_fsync, crash("reopened")),
        SeededBug(unsynced_batches_called_durable, crash("never")),
        SeededBug(shown_before_it_is_durable, crash("killed")),
        SeededBug(space_not_reserved, room),
        SeededBug(damage_refused_after_touching, damage(Case(several_segments))),
        SeededBug(epoch_used_twice, crash("holders", every=3)),
        SeededBug(attached_before_it_is_durable, crash("never, holders")),
        SeededBug(holders_survive_a_power_cut, crash("never, holders", every=9)),
        SeededBug(holders_survive_the_restart_after_next, crash("never, zombie", every=9)),
        SeededBug(fenced_holders_move, crash("consumers", every=40)),
        SeededBug(attaching_uses_the_whole_reserve, room_for_truncates),
    )
}
"""Every bug by its name."""

assert SEGMENT_BYTES == BLOCK_BYTES
