"""Appends at positions that are on the disk alone: what is stored there is read, and then they are planned again.

Planning compares a repeat with what is stored, and waits for nothing. So such a call leaves its batch, nobody waits for
the read but its caller, and it comes back as a call that was just made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mrecordlog_async.engine.intake.admission import Admission
from mrecordlog_async.engine.intake.commands import AppendRecords
from mrecordlog_async.engine.spilling.disk_reads import DiskReads, LoadLimits
from mrecordlog_async.format.controls import Truncate
from mrecordlog_async.format.record import LogRecord
from mrecordlog_async.memory.cutting import UNLIMITED
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.runs import runs_of
from mrecordlog_async.model import Run


class SetAside:
    """Calls whose records are being read. The writer owns it, and does not end before they are back."""

    def __init__(self, queues: Queues, admission: Admission, reads: DiskReads | None) -> None:
        self._queues = queues
        self._admission = admission
        self._reads = reads
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def add(self, call: AppendRecords) -> None:
        """Read what *call* is to be compared with, and have it wait for the writer again."""
        task = asyncio.get_running_loop().create_task(self._read(call), name="mrecordlog compare")
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def counts_cuts(self) -> bool:
        """Return whether there is anything for `count_cuts` to count."""
        return self._reads is not None and bool(self._queues.pins.gathered)

    async def count_cuts(self, records: Iterable[LogRecord]) -> None:
        """Count what the truncates among *records*, which are stored, leave of places with gaps; see `DiskReads`."""
        assert self._reads is not None, "`counts_cuts` says so"
        truncates = [(record.id, record.position + 1) for record in records if isinstance(record, Truncate)]
        await self._reads.count_cuts(truncates)

    async def _read(self, call: AppendRecords) -> None:
        try:
            call.stored = await self._stored(call)
        except Exception as error:
            self._admission.refusals.refuse([call], error)
        else:
            if not call.withdrawn():
                self._admission.take_again(call)

    async def _stored(self, call: AppendRecords) -> tuple[list[Run], int]:
        queue, position, found = self._queues.get(call.queue), call.position, list[Run]()
        assert self._reads is not None and position is not None, "records have left memory"
        if queue is None:
            return found, position
        end = position + len(call.payloads)
        while position < (stop := min(end, queue.memory_first)):
            found += runs_of((await self._reads.load(queue, position, stop, LoadLimits(UNLIMITED))).held)
            position = stop  # meanwhile, more of them may have left memory
        return found, max(position, queue.memory_first)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._admission.wake()  # the writer may be waiting for the last of them to end
