"""Bugs in what the log learned later, patched in like those in `seeded_bugs`.

They concern `CLOSED` and the mark of a log without it, consumers and their owners, incarnations of queues, openings,
the times of records, and records on the disk.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import tempfile
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mrecordlog_async.engine.commit.batch import CommitRequest
from mrecordlog_async.engine.commit.journal import Journal
from mrecordlog_async.engine.intake.controls import AttachConsumer, TruncateQueue
from mrecordlog_async.engine.planning.consumer import plan_attach
from mrecordlog_async.engine.planning.draft import Draft, QueueView
from mrecordlog_async.engine.planning.queue import plan_truncate
from mrecordlog_async.engine.readers.age_clock import AgeClock
from mrecordlog_async.engine.spilling.disk_reads import DiskReads
from mrecordlog_async.format.parse import ParsedBatch
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.model import TICK_NS
from mrecordlog_async.recovery import torn_or_damaged
from mrecordlog_async.recovery.gathered_reader import FoundRuns, GatheredReader, WantedRuns, wanted_runs
from mrecordlog_async.recovery.replay import Replay
from mrecordlog_async.storage.gathered_files import GatheredFile
from mrecordlog_async.storage.gathered_pieces import UsedPiece
from tests.deep.faults.test_tiny_memory import READS
from tests.engine.test_beyond_memory import (
    test_every_record_is_read_where_a_file_has_other_places_than_before,
)
from tests.readonly.test_beyond_memory import test_the_writers_files_are_read_by_their_own_places

from .aged_histories import AGED_CASES
from .consumer_histories import CONSUMER_CASES
from .disk import Fault
from .driver import DIRECTORY, Run, without_chance
from .explore import Explorer, check_openings
from .histories import CASES, Case
from .seeded_bugs import Hunt, SeededBug, crash
from .survivors import refuse

# What notices them.


def answers(case: Case) -> Hunt:
    """Run a history whose calls must all end with the expected results."""

    def hunt() -> None:
        for life in case.run(moments=False).lives:
            life.model.states()

    return hunt


def age_and_crash() -> None:
    """Explore crash states of a log whose records have many times."""
    Explorer(deep_every=0, subsets=2).explore(AGED_CASES["clock jumps"].run(), every=40)


def other_places_are_read() -> None:
    """Read records from gathered files that were made again, and have other places than those that were located."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(test_every_record_is_read_where_a_file_has_other_places_than_before(Path(directory), True, False))


def files_of_the_writer_are_read() -> None:
    """Read what a writer gathered in other places than its reader has."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patches:
        asyncio.run(test_the_writers_files_are_read_by_their_own_places(Path(directory), patches))


def lose_what_is_not_synced() -> None:
    """Lose everything that a weak policy may lose. The opening must be known."""
    check_openings(CASES["never, killed"].run())


async def _twice(run: Run) -> None:
    await run.open()
    await run.create("a")
    await run.append("a", 400)
    await run.close()
    run.before = run.disk.content(DIRECTORY)
    await run.open()
    await run.append("a", 500)


def damage_without_closed() -> None:
    """Damage the last batch of a log that a full disk left without `CLOSED`."""
    case = Case(_twice)
    calls = case.run(moments=False).disk.call_names
    last_create = len(calls) - calls[::-1].index("create")
    run = case.run(Fault(last_create, errno.ENOSPC), moments=False)
    files = _files(run.disk.content(DIRECTORY))
    assert "CLOSED" not in files
    (name,) = files
    at = files[name].index(run.model.calls[-1].payloads[0])
    with without_chance():
        refuse({name: files[name][:at] + b"?" + files[name][at + 1 :]})


def closed_of_before() -> None:
    """Put the `CLOSED` of an earlier life next to a log that was written since."""
    run = Case(_twice).run(moments=False)
    with without_chance():
        refuse({**_files(run.disk.content(DIRECTORY)), "CLOSED": run.before["CLOSED"]})


def _files(content: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in content.items() if name != "LOCK"}


# The bugs.


def unclosed_log_without_mark() -> AbstractContextManager[Any]:
    return patch.object(Journal, "mark_end", lambda self, oldest_segment: None)


def outdated_closed_believed() -> AbstractContextManager[Any]:
    return patch.object(torn_or_damaged, "batch_follows", lambda files, handle, end, size: False)


def truncated_to_the_fastest_consumer() -> AbstractContextManager[Any]:
    def slowest(self: QueueView) -> tuple[int, str] | None:
        names = {*(self.queue.consumers if self.queue is not None else ()), *self._planned_consumers()._changed}
        return max(
            ((state.position, name) for name in names if (state := self.consumer(name)) is not None), default=None
        )

    return patch.object(QueueView, "slowest", slowest)


def owner_not_asked() -> AbstractContextManager[Any]:
    def attach(draft: Draft, call: AttachConsumer) -> None:
        call.take_over = True
        plan_attach(draft, call)

    return patch.dict("mrecordlog_async.engine.planning.plan._DECIDE", {AttachConsumer: attach})


def truncate_of_another_incarnation() -> AbstractContextManager[Any]:
    def truncate(draft: Draft, call: TruncateQueue) -> None:
        call.queue_id = None
        plan_truncate(draft, call)

    return patch.dict("mrecordlog_async.engine.planning.plan._DECIDE", {TruncateQueue: truncate})


def opening_not_durable() -> AbstractContextManager[Any]:
    original = Journal._with_opening

    def with_opening(self: Journal, request: CommitRequest, records: Any) -> Any:
        return request, original(self, request, records)[1]

    return patch.object(Journal, "_with_opening", with_opening)


def aged_by_the_wall_clock() -> AbstractContextManager[Any]:
    return patch.object(AgeClock, "now", lambda self: time.time_ns() // TICK_NS)


def times_of_the_restart() -> AbstractContextManager[Any]:
    original = Replay.add

    def add(self: Replay, name: str, segment: int, batch: ParsedBatch) -> None:
        original(self, name, segment, batch._replace(commit=batch.commit._replace(time_ns=time.time_ns())))

    return patch.object(Replay, "add", add)


def cuts_not_counted() -> AbstractContextManager[Any]:
    async def count_cuts(self: DiskReads, truncates: Iterable[tuple[int, int]]) -> None:
        pass

    return patch.object(DiskReads, "count_cuts", count_cuts)


def rest_of_a_read_skipped() -> AbstractContextManager[Any]:
    """What was located in one file is read to its size there from another one, which has other places."""
    return patch.object(GatheredReader, "_read_all", GatheredReader._read_or_make)


def places_of_another_file() -> AbstractContextManager[Any]:
    """A reader takes the numbers of its own places for those of the writer's file, if both are of the same state."""
    located: dict[WantedRuns, range] = {}
    original = GatheredReader._read_from
    calls = count()

    def locate(queue: Queue, start: int, stop: int, bytes_max: int) -> WantedRuns | None:
        assert next(calls) < 1_000, "the reader finds no end"
        found = wanted_runs(queue, start, stop, bytes_max)
        if found is not None:
            places = queue.places_by_segment(max(start, queue.first_position), stop)
            located[found] = next(numbers for _, numbers in places if numbers)
        return found

    def read(self: GatheredReader, file: GatheredFile, wanted: WantedRuns, piece: UsedPiece) -> FoundRuns:
        whole, numbers = file.index, located.pop(wanted, None)
        if numbers is not None and whole.head == wanted.head:
            file.index = copy.copy(whole)
            file.index.places = lambda *_: numbers  # type: ignore[method-assign]
        try:
            return original(self, file, wanted, piece)
        finally:
            file.index = whole

    stack = ExitStack()
    stack.enter_context(patch("mrecordlog_async.readonly.wanted_runs", locate))
    stack.enter_context(patch.object(GatheredReader, "_read_from", read))
    return stack


LATER = {
    bug.bug.__name__: bug
    for bug in (
        SeededBug(unclosed_log_without_mark, damage_without_closed),
        SeededBug(outdated_closed_believed, closed_of_before),
        SeededBug(truncated_to_the_fastest_consumer, crash("consumers", every=3)),
        SeededBug(owner_not_asked, answers(CONSUMER_CASES["owners"])),
        SeededBug(truncate_of_another_incarnation, answers(AGED_CASES["clock jumps"])),
        SeededBug(opening_not_durable, lose_what_is_not_synced),
        SeededBug(aged_by_the_wall_clock, answers(AGED_CASES["clock jumps"])),
        SeededBug(times_of_the_restart, age_and_crash),
        SeededBug(cuts_not_counted, answers(READS)),
        SeededBug(rest_of_a_read_skipped, other_places_are_read),
        SeededBug(places_of_another_file, files_of_the_writer_are_read),
    )
}
"""Every one of them by its name."""
