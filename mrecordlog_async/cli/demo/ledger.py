"""The demo's bookkeeping: producers that note every acknowledged record, and the count of those found again."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from mrecordlog_async.cli.demo.service import ServiceProcess

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient
    from mrecordlog_async.client.producer import Producer


@dataclass(slots=True)
class DemoVerdict:
    """Result of the demo. unanswered: stored records whose append got no response, which is allowed."""

    acknowledged: int
    found: int
    lost: int
    doubled: int
    unanswered: int
    kills: int
    recovery_seconds: list[float]
    failures: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Return whether nothing was lost, and something was acknowledged."""
        return bool(self.acknowledged) and not (self.lost or self.doubled or self.failures)

    def facts(self) -> dict[str, object]:
        """Return everything for JSON."""
        return {"good": self.good, **asdict(self)}

    def sentence(self) -> str:
        """Return the verdict in one line."""
        times = self.recovery_seconds or [0.0]
        counted = (
            f"killed {self.kills} times; acknowledged {self.acknowledged:,}, found again {self.found:,}, "
            f"lost {self.lost}, doubled {self.doubled}; ready again after {min(times) * 1e3:.0f} to "
            f"{max(times) * 1e3:.0f} ms"
        )
        if self.good:
            return f"promise kept: {counted}"
        return "\n".join([f"PROMISE BROKEN: {counted}", *self.failures[:5]])


@dataclass(slots=True)
class Count:
    """Counts of the records found in the log. positions: the end of what was read, by queue."""

    found: int = 0
    lost: int = 0
    doubled: int = 0
    unanswered: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    heads: dict[str, set[bytes]] = field(default_factory=dict)


class Ledger:
    """Every acknowledged record, by queue and position. `count` has what was found after the kills so far."""

    def __init__(self, record_bytes: int) -> None:
        self.acknowledged = 0
        self.failures: list[str] = []
        self.count = Count()
        self._record_bytes = record_bytes
        self._payloads: dict[str, dict[int, bytes]] = {}

    def payload(self, producer: int, number: int) -> bytes:
        """Return a unique record, padded to the record size."""
        return b"%d/%d " % (producer, number) + bytes(max(self._record_bytes - 16, 0))

    def note(self, queue: str, position: int, payload: bytes) -> None:
        """Remember an acknowledged record, by its head."""
        self.acknowledged += 1
        if self._payloads.setdefault(queue, {}).setdefault(position, _head(payload)) != _head(payload):
            self.failures.append(f"queue {queue}: position {position} was acknowledged to two producers")

    async def look_again(self, client: RecordLogClient) -> None:
        """Check the records acknowledged since the last check."""
        for queue, payloads in self._payloads.items():
            await self._look(client, queue, max(payloads) + 1, self.count)

    async def check(self, client: RecordLogClient, service: ServiceProcess) -> DemoVerdict:
        """Read everything back, from the first record, and compare."""
        count = Count()
        for queue in self._payloads:
            await self._look(client, queue, None, count)
        times = service.recovery_seconds
        return DemoVerdict(
            self.acknowledged,
            count.found,
            count.lost,
            count.doubled,
            count.unanswered,
            service.kills,
            times,
            self.failures,
        )

    async def _look(self, client: RecordLogClient, queue: str, stop: int | None, count: Count) -> None:
        """Compare the records of *queue* up to *stop* with what was acknowledged."""
        start, heads = count.positions.get(queue, 0), count.heads.setdefault(queue, set())
        # Fixed before reading: records acknowledged meanwhile are checked next time.
        due = {
            position: head
            for position, head in self._payloads[queue].items()
            if position >= start and (stop is None or position < stop)
        }
        found = 0
        async for position, payload in client.range(queue, start, stop):
            head = _head(payload)
            count.doubled += head in heads
            heads.add(head)
            if due.get(position) == head:
                found += 1
            else:
                count.unanswered += position not in due
        count.found += found
        count.lost += len(due) - found
        if stop is not None:
            count.positions[queue] = stop


async def start_producers(client: RecordLogClient, queues: int) -> list[Producer]:
    """Create the queues, and a producer for each."""
    producers = [client.producer(f"demo-{number:02}", create=True) for number in range(queues)]
    await asyncio.gather(*(producer.__aenter__() for producer in producers))
    return producers


async def produce(producer: Producer, number: int, ledger: Ledger, stop: asyncio.Event) -> None:
    """Append until *stop* is set. An error is added to the ledger's failures."""
    count = 0
    try:
        while not stop.is_set():
            payload = ledger.payload(number, count)
            ledger.note(producer.queue, await producer.append_record(payload), payload)
            count += 1
    except Exception as error:
        ledger.failures.append(f"queue {producer.queue}: {error}")


def _head(payload: bytes) -> bytes:
    return payload.partition(b" ")[0]
