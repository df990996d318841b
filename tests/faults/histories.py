"""Histories: short lives of a log that hold what is easily forgotten. Each is a coroutine over a `Run`.

They must get through when the disk fails under them, too: calls note their errors and the history goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from mrecordlog_async import Limits, PersistPolicy

from .disk import Disk, Fault
from .driver import History, Run, run_history

BLOCK_BYTES = 32_768


@dataclass(frozen=True)
class Case:
    """A history with the options of its log.

    early_roll_bytes: when an idle log with nothing live rolls. may_refuse: calls are refused although no call to the
    disk fails (the disk is small, or the process dies).
    """

    history: History
    policy: PersistPolicy = field(default_factory=PersistPolicy.always)
    limits: Limits = field(default_factory=Limits)
    early_roll_bytes: int = 1 << 20
    may_refuse: bool = False
    capacity_bytes: int | None = None

    def run(self, fault: Fault | None = None, *, moments: bool = True) -> Run:
        """Run it on a fresh disk."""
        run = Run(Disk(capacity_bytes=self.capacity_bytes), self.policy, self.limits)
        run.record_moments = moments
        return self.run_as(run, fault)

    def run_as(self, run: Run, fault: Fault | None = None) -> Run:
        """Run it as *run*."""
        with early_roll(self.early_roll_bytes):
            run_history(self.history, run, fault)
        if fault is None and not self.may_refuse:
            wrong = [call for life in run.lives for call in life.model.calls if call.outcome in ("absent", "unknown")]
            assert run.stopped is None and not wrong, f"{run.stopped!r}, {wrong[:1]}"
        return run


@contextmanager
def early_roll(size: int) -> Iterator[None]:
    """Let an idle log with nothing live roll when it holds more than *size* bytes."""
    with patch("mrecordlog_async.engine.writer.EARLY_ROLL_BYTES", size):
        yield


async def concurrent(run: Run) -> None:
    """Calls of all kinds, many at a time, on three queues."""
    await run.open()
    await run.create("a")
    tasks = [run.begin_append("a", 30 + 90 * number) for number in range(4)]
    tasks += [run.begin("create", "b"), run.begin("create", "b", exist_ok=True), run.begin_append("b", 600, 0, 70)]
    tasks += [run.begin("truncate", "a", position=1), run.begin_append("a", 2_000)]
    tasks += [run.begin("create", "b"), run.begin("delete", "c"), run.begin_append("c", 5)]
    await asyncio.gather(*tasks)
    tasks = [run.begin("delete", "b"), run.begin("create", "b"), run.begin_append("b", 100)]
    tasks += [run.begin_append("b", 100 + number) for number in range(3)]
    await asyncio.gather(*tasks)
    await run.append("a", *[7] * 30)
    await run.idle()
    await run.append("a", 1)


async def rolls(run: Run) -> None:
    """Two queues over four segments; the older ones go when nothing needs them."""
    await run.open()
    await run.create("a")
    await run.create("b")
    await run.append("b", 900)
    for _ in range(9):
        await asyncio.gather(run.begin_append("a", 6_000), run.begin_append("a", 4_000, 100))
    await run.truncate("a", 10)
    await run.truncate("b", 0)
    for _ in range(4):
        await run.append("a", 9_000)
    await run.truncate("a", 26)
    await run.idle()
    await run.append("b", 50)


async def positions(run: Run) -> None:
    """Positions of the caller's choice, gaps, repeats, truncates past the end."""
    await run.open()
    await run.create("a")
    await run.append("a", 40, 50, position=7)
    first = run.payloads(80)
    await run.do("append", "a", position=20, payloads=first)
    tasks = [run.begin("append", "a", position=20, payloads=first), run.begin_append("a", 80, position=20)]
    await asyncio.gather(*tasks)
    await run.truncate("a", 12)
    await run.truncate("a", 3)
    await run.append("a", 10)
    await run.truncate("a", 30)
    await run.append("a", 60, 0, 0)
    await run.truncate("a", 33)
    await run.truncate("a", 100)
    await run.idle()
    await run.create("b")
    tasks = [run.begin("truncate", "b", position=4), run.begin_append("b", 11), run.begin_append("b", 12, position=5)]
    tasks += [run.begin_append("b", 30, position=9), run.begin_append("b", 31, position=0)]
    await asyncio.gather(*tasks)
    await run.append("a", 5, position=102)


async def recreated(run: Run) -> None:
    """Delete and create again, across a roll and a reopen: a new queue with an id that was never given before."""
    await run.open()
    await run.create("a")
    await run.create("b")
    await run.append("a", 20_000)
    await run.delete("a")
    await run.append("b", 20_000)
    await run.create("a")
    await run.append("a", 300)
    await run.delete("b")
    await run.close()
    await run.open()
    await run.create("b")
    await run.append("b", 15_000)
    await run.delete("a")
    await run.delete("b")
    await run.append("a", 1)
    await run.kill()
    await run.open()
    await run.create("a")
    await run.append("a", 30_000)
    await run.truncate("a", 0)
    await run.create("c")
    await run.delete("c")
    await run.append("a", 30_000)
    await run.idle()
    await run.create("c")


async def idle_roll(run: Run) -> None:
    """A log in which nothing is live leaves its segment, idle as it is, and starts small again."""
    await run.open()
    await run.create("a")
    await run.create("empty")
    await run.append("a", 9_000)
    await run.append("a", 9_000)
    await run.truncate("a", 1)
    await run.idle()
    await run.append("a", 100)
    await run.append("a", 9_000)
    await run.delete("a")
    await run.idle()
    await run.append("empty", 10)


async def reopened(run: Run) -> None:
    """Close, open, write, close, open, and a process that dies right after it opened or wrote."""
    await run.open()
    await run.create("a")
    await run.append("a", 500)
    await run.close()
    await run.open()
    await run.append("a", 500)
    await run.idle()
    await run.close()
    await run.open()
    await run.close()
    await run.open()
    await run.kill()
    await run.open()
    await run.append("a", 700, 20)
    await run.kill()
    await run.open()
    await run.truncate("a", 0)
    await run.append("a", 500)


async def killed(run: Run) -> None:
    """A process that dies with calls on their way, again and again."""
    for turns in range(0, 12, 2):
        await run.open()
        await run.do("create", "a", exist_ok=True)
        tasks = [run.begin_append("a", 200 + 700 * number) for number in range(3)]
        tasks.append(run.begin("truncate", "a", position=turns))
        await run.turns(turns)
        await run.kill()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await run.open()
    await run.append("a", 1)


async def cancelled(run: Run) -> None:
    """Callers that give up before, while and after the writer took their calls."""
    await run.open()
    await run.create("a")
    for turns in (0, 1, 2, 3, 5, 8):
        tasks = [run.begin_append("a", 100), run.begin_append("a", 400), run.begin_append("a", 30, 40)]
        await run.turns(turns)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    doomed = run.begin("create", "b")
    await run.turns(4)
    doomed.cancel()
    await run.append("b", 60)
    await run.append("a", 60)


async def large(run: Run) -> None:
    """Records and calls of many blocks, larger than a segment, and empty ones."""
    await run.open()
    await run.create("a")
    await run.append("a", 100_000)
    await run.append("a", 0)
    await run.append("a", *[3_000] * 20)
    await run.append("a", 32_768 - 7)
    await run.truncate("a", 5)
    await run.append("a", *[0] * 40)
    await run.truncate("a", 22)
    await run.append("a", 40_000)


async def many_queues(run: Run) -> None:
    """A table of queues that takes more than a block."""
    await run.open()
    await asyncio.gather(*(run.begin("create", f"{number:03}" + "q" * 200) for number in range(180)))
    name = "007" + "q" * 200
    await asyncio.gather(*(run.begin_append(name, 12_000) for _ in range(3)))
    await run.append(name, 15_000)
    await run.delete("000" + "q" * 200)
    await run.append(name, 30_000)
    await run.truncate(name, 3)
    await run.idle()


async def weak(run: Run) -> None:
    """Answers before the sync: a power cut takes a suffix of whole batches, and nothing before a create or sync."""
    await run.open()
    await run.create("a")
    for size in (300, 4_000, 20, 700):
        await run.append("a", size, size)
    await run.sync()
    for size in (300, 5_000, 20, 7_000):
        await asyncio.gather(run.begin_append("a", size), run.begin_append("a", size, 1))
    await run.truncate("a", 5)
    await run.create("b")
    await run.append("b", 20_000)
    await run.append("b", 12_000)
    await run.append("b", 100)
    await run.idle(0.6)
    await run.truncate("b", 1)
    await run.append("a", 200)
    await run.delete("b")
    await run.append("a", 200)
    await run.idle()
    await run.append("a", 201)
    await run.append("a", 202)


async def full_disk(run: Run) -> None:
    """Appends until the disk has no room; truncate and delete get through, and then appends do again."""
    await run.open()
    await run.create("a")
    await run.create("b")
    for _ in range(16):
        await run.append("a", 14_000)
    await run.append("b", 14_000)
    await run.create("c")
    await run.truncate("a", 2)
    await run.append("b", 50)
    await run.truncate("a", 40)
    await run.idle()
    await run.append("b", 300)
    await run.delete("b")
    await run.idle()
    await run.append("a", 300)


def commit_at(distance: int) -> History:
    """Return a history whose second COMMIT would begin *distance* bytes before a block's end."""

    async def history(run: Run) -> None:
        await run.open()
        await run.create("a")
        assert run.log is not None
        end = run.log._opened.journal.at.end
        await run.append("a", BLOCK_BYTES - end - distance - COMMIT_OFFSET)
        await run.append("a", 10)

    return history


COMMIT_OFFSET = 7 + 21 + 8
"""Frame header, head of the APPEND record and two offsets: what stands before the payload of a single record."""

NEVER = PersistPolicy.never()

CASES = {
    "concurrent": Case(concurrent),
    "rolls": Case(rolls),
    "positions": Case(positions),
    "recreated": Case(recreated),
    "idle roll": Case(idle_roll, early_roll_bytes=4_096),
    "reopened": Case(reopened),
    "killed": Case(killed, may_refuse=True),
    "cancelled": Case(cancelled),
    "large": Case(large),
    "many queues": Case(many_queues),
    "interval": Case(weak, PersistPolicy.interval(0.5)),
    "never": Case(weak, NEVER),
    "never, killed": Case(killed, NEVER, may_refuse=True),
    "never, rolls": Case(rolls, NEVER),
    "full disk": Case(full_disk, early_roll_bytes=4_096, capacity_bytes=420_000, may_refuse=True),
    "disk limit": Case(full_disk, limits=Limits(disk_bytes=420_000), early_roll_bytes=4_096, may_refuse=True),
}
