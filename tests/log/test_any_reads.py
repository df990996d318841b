"""Any appends, truncates and reopenings of two queues, against a dictionary; and reads that are kept meanwhile.

The sizes are those around which a log may change the form in which it keeps records: a record of 16 KiB, a call of 250
records, and 32 to 64 KiB of small ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import Phase, given, settings

from mrecordlog_async import Limits, MultiRecordLog, PersistPolicy
from mrecordlog_async.testing import MemoryDisk
from tests.conftest import contents

QUEUES = ("a", "b")
KIB = 1_024

CALLS = st.one_of(
    st.lists(st.sampled_from([0, 1, 30, 700]), min_size=1, max_size=4),
    st.sampled_from([16 * KIB - 1, 16 * KIB, 16 * KIB + 1, 40 * KIB, 70 * KIB]).map(lambda size: [size]),
    st.sampled_from([249, 250, 251, 600]).map(lambda records: [3] * records),
    st.sampled_from([11, 22, 44]).map(lambda records: [1_500] * records),
)
"""The sizes of the records of one call."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(QUEUES), CALLS, st.sampled_from([0, 0, 0, 0, 1, 300])),
        st.tuples(st.just("singles"), st.integers(1, 90), st.sampled_from([1, 200, 900])),
        st.tuples(st.just("truncate"), st.sampled_from(QUEUES), st.floats(0, 1.1)),
        st.tuples(st.just("read"), st.sampled_from(QUEUES), st.floats(0, 1), st.floats(0, 1)),
        st.tuples(st.just("reopen")),
    ),
    min_size=4,
    max_size=12,
)


@dataclass
class Model:
    """A queue: its records, and the position after the last one."""

    first: int = 0
    next: int = 0
    records: dict[int, bytes] = field(default_factory=dict)

    def append(self, first: int, payloads: Sequence[bytes]) -> None:
        if self.first == self.next == 0:
            self.first = first
        self.records.update(enumerate(payloads, first))
        self.next = first + len(payloads)

    def truncate(self, position: int) -> int:
        if position < self.first:
            return 0
        gone = [at for at in self.records if at <= position]
        for at in gone:
            del self.records[at]
        self.first, self.next = position + 1, max(self.next, position + 1)
        return len(gone)

    def place(self, share: float) -> int:
        """Return a position at this share of what is retained."""
        return self.first + int(share * (self.next - self.first))


class Story:
    """The steps of one example, on one log."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.models = {queue: Model() for queue in QUEUES}
        self.kept: list[tuple[Callable[[], object], object]] = []  # what a read returned, and what it must show
        self.number = 0

    async def open(self) -> None:
        self.log = await MultiRecordLog.open(
            "/data/wal",
            filesystem=self.disk,
            segment_bytes=128 * KIB,
            persist_policy=PersistPolicy.never(),
            limits=Limits(record_bytes=1 << 20),
            queues=QUEUES,
        )

    def payloads(self, sizes: Sequence[int]) -> list[bytes]:
        made = []
        for size in sizes:
            self.number += 1
            made.append((b"<%d>" % self.number * (size // 3 + 1))[:size])
        return made

    async def append(self, queue: str, sizes: list[int], gap: int) -> None:
        model, payloads = self.models[queue], self.payloads(sizes)
        first = model.next + gap
        assert await self.log.append_records(queue, first if gap else None, payloads) == first + len(payloads) - 1
        model.append(first, payloads)

    async def singles(self, callers: int, size: int) -> None:
        """Append single records to both queues in turn, together."""
        payloads = self.payloads([size] * callers)
        queues = [QUEUES[at % 2] for at in range(callers)]
        positions = await asyncio.gather(*map(self.log.append, queues, payloads))
        for queue, payload, position in zip(queues, payloads, positions, strict=True):
            assert position == self.models[queue].next
            self.models[queue].append(position, [payload])

    async def truncate(self, queue: str, share: float) -> None:
        model = self.models[queue]
        position = model.place(share)
        assert await self.log.truncate(queue, position) == model.truncate(position)

    async def read(self, queue: str, begin: float, end: float) -> None:
        """Read a part in every way, and keep what was returned."""
        model = self.models[queue]
        start, stop = sorted((model.place(begin), model.place(end)))
        due = [(at, payload) for at, payload in sorted(model.records.items()) if start <= at < stop]
        records_in_range, later = self.log.range(queue, start, stop), list[tuple[int, bytes]]()

        def iterate() -> object:
            later.extend((at, bytes(payload)) for at, payload in records_in_range)  # after what comes in between
            return later

        runs = self.log.runs(queue, start, stop)
        views = [memoryview(run.payload) for run in runs]
        records = [payload for _, payload in due]
        self.kept += [
            (iterate, due),
            (lambda: [tuple(each) for run in runs for each in run.records()], due),
            (lambda: b"".join(views), b"".join(records)),
        ]

    async def reopen(self) -> None:
        await self.log.close()
        await self.open()

    def check(self) -> None:
        """Check what the log holds, and one after the other what earlier reads have returned."""
        assert contents(self.log) == {
            queue: (model.first, model.next, sorted(model.records.items())) for queue, model in self.models.items()
        }
        held = 0
        for queue, model in self.models.items():
            summary, size = self.log.queue_summary(queue), sum(map(len, model.records.values()))
            assert (summary.records, summary.bytes) == (len(model.records), size)
            held += size + 4 * len(model.records)
        assert self.log.resource_usage().memory_bytes >= held

    async def tell(self, steps: list[tuple[Any, ...]]) -> None:
        await self.open()
        try:
            for step in steps:
                await getattr(self, step[0])(*step[1:])
                self.check()
            for show, due in self.kept:
                assert show() == due
        finally:
            await self.log.close()


@settings(max_examples=80, phases=(Phase.explicit, Phase.generate))  # what fails has few steps as it is
@given(steps=STEPS)
def test_any_reads_show_what_was_there(steps: list[tuple[Any, ...]]) -> None:
    """The log holds what the dictionary holds, and what a read has returned stays as it was when it was made."""
    asyncio.run(Story().tell(steps))
