"""The demo's book-keeping: producers that note every acknowledged record, and the count of what is found again."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from mrecordlog_async.cli.demo_service import ServiceProcess

if TYPE_CHECKING:
    from mrecordlog_async.http.client import RecordLogClient
    from mrecordlog_async.http.producer import Producer


@dataclass(slots=True)
class Verdict:
    """What the demo found. unanswered: records found that nobody had an answer for, which is allowed."""

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
        """Whether every promise was kept, and there were any."""
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


class Ledger:
    """Every acknowledged record: queue and position to payload."""

    def __init__(self, record_bytes: int) -> None:
        self.acknowledged = 0
        self.failures: list[str] = []
        self._record_bytes = record_bytes
        self._payloads: dict[str, dict[int, bytes]] = {}

    def payload(self, producer: int, number: int) -> bytes:
        """Return a record like no other: its head is padded to the size wanted."""
        return b"%d/%d " % (producer, number) + bytes(max(self._record_bytes - 16, 0))

    def note(self, queue: str, position: int, payload: bytes) -> None:
        """Remember an acknowledged record, by its head."""
        self.acknowledged += 1
        if self._payloads.setdefault(queue, {}).setdefault(position, _head(payload)) != _head(payload):
            self.failures.append(f"queue {queue}: position {position} was acknowledged to two producers")

    async def check(self, client: RecordLogClient, service: ServiceProcess) -> Verdict:
        """Read everything back and compare."""
        found = doubled = unanswered = 0
        for queue, payloads in self._payloads.items():
            seen: set[bytes] = set()
            async for position, payload in client.range(queue):
                head = _head(payload)
                doubled += head in seen
                seen.add(head)
                if payloads.get(position) == head:
                    found += 1
                else:
                    unanswered += position not in payloads
        lost = self.acknowledged - found
        times = service.recovery_seconds
        return Verdict(self.acknowledged, found, lost, doubled, unanswered, service.kills, times, self.failures)


async def start_producers(client: RecordLogClient, queues: int) -> list[Producer]:
    """Make the queues, and a producer for each."""
    producers = [client.producer(f"demo-{number:02}", create=True) for number in range(queues)]
    await asyncio.gather(*(producer.__aenter__() for producer in producers))
    return producers


async def produce(producer: Producer, number: int, ledger: Ledger, stop: asyncio.Event) -> None:
    """Append until told to stop; a failure is a finding."""
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
