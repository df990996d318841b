"""Histories: short lives of a log with the cases that are easily forgotten. Each is a coroutine that uses a `Run`.

A history must also end if the disk fails: calls record their errors, and the history continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

from mrecordlog_async import Limits, PersistPolicy
from mrecordlog_async.format.header import HEADER_BYTES, decode_header
from mrecordlog_async.format.parse import SegmentParser
from mrecordlog_async.storage.segment import list_segments, segment_name

from . import sizes
from .disk import SECTOR_BYTES, Disk, Fault
from .driver import DIRECTORY, SEGMENT_BYTES, History, Run, run_history
from .explore import bounded
from .judge import Violation
from .sizes import BLOCK_BYTES as BLOCK_BYTES


@dataclass(frozen=True)
class Case:
    """A history with the options of its log.

    early_roll_bytes: the size at which an idle log without live records rolls. may_refuse: calls may be refused
    although no call to the disk fails (the disk is small, or the process dies). small: the sizes at which the log
    changes its way of working are a few blocks and a few buffers. stepping: the loop turns in the middle of the
    thread's jobs. by_result: some calls wait in line, so their order is that of their results.
    sector_bytes, has_direct, has_prepared: as of `Disk`; without direct access, segments are written through the cache.
    recycle: dead segments become later ones. staging_bytes: what one direct write takes, None for the size as it is.
    memory_bytes: if not 0, records leave memory above it.
    piece_bytes: if not 0, batches of this size are written in pieces of this size, and runs are half as large.
    """

    history: History
    policy: PersistPolicy = field(default_factory=PersistPolicy.always)
    limits: Limits = field(default_factory=Limits)
    early_roll_bytes: int = 1 << 20
    may_refuse: bool = False
    capacity_bytes: int | None = None
    small: bool = False
    stepping: bool = False
    by_result: bool = False
    sector_bytes: int = SECTOR_BYTES
    has_direct: bool = True
    has_prepared: bool = False
    staging_bytes: int | None = None
    piece_bytes: int = 0
    recycle: bool = True
    memory_bytes: int = 0

    def run(self, fault: Fault | None = None, *, moments: bool = True) -> Run:
        """Run it on a fresh disk."""
        disk = Disk(
            capacity_bytes=self.capacity_bytes,
            sector_bytes=self.sector_bytes,
            has_direct=self.has_direct,
            has_prepared=self.has_prepared,
        )
        limits = self.limits
        if self.memory_bytes:
            limits = replace(limits, memory_bytes=self.memory_bytes, beyond_memory="disk")
        run = Run(disk, self.policy, limits)
        run.record_moments, run.by_result, run.recycle = (
            moments,
            self.by_result or bool(self.memory_bytes),
            self.recycle,
        )
        return self.run_as(run, fault)

    def run_as(self, run: Run, fault: Fault | None = None) -> Run:
        """Run it as *run*."""
        with self.sizes():
            run_history(self.history, run, fault, stepping=self.stepping)
        if fault is None and not self.may_refuse:
            calls = [call for life in run.lives for call in life.model.calls if call.error is not None]
            wrong = [call for call in calls if call.outcome in ("absent", "unknown")]
            assert run.stopped is None and not wrong, f"{run.stopped!r}, {wrong[:1]}"
        return run

    @property
    def opened_with(self) -> Hashable:
        """All that the opening of its log depends on, except what is on the disk."""
        sizes = self.early_roll_bytes, self.small, self.staging_bytes, self.piece_bytes, self.memory_bytes
        return *sizes, self.has_direct

    @contextmanager
    def sizes(self) -> Iterator[None]:
        """Set the sizes of this case. The log that it leaves is opened with them as well, with half of the memory."""
        replaced = {**sizes.early_roll(self.early_roll_bytes)}
        if self.small:
            replaced |= sizes.SMALL
        if self.staging_bytes:
            replaced |= sizes.staging(self.staging_bytes)
        if self.piece_bytes:
            replaced |= sizes.pieces(self.piece_bytes)
        with ExitStack() as stack:
            stack.enter_context(sizes.replaced(replaced))
            if self.memory_bytes:
                stack.enter_context(bounded(self.memory_bytes // 2))
            yield


def family(name: str) -> str:
    """Return what the names of histories with nearly the same disks begin with, up to the comma."""
    return name.partition(",")[0]


def by_family(names: Iterable[str]) -> list[str]:
    """Return *names* with those of each family in a row."""
    return sorted(names, key=family)


async def concurrent(run: Run) -> None:
    """Calls of all kinds, many at the same time, on three queues."""
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
    """Two queues over four segments. The older segments are deleted when nothing needs them."""
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


async def recycles(run: Run) -> None:
    """Segments that are used again several times, by processes that close the log, die, or die in the midst of a write.

    Every batch has the same frames at the same places of its segment, so what is left of an older one fits exactly. Its
    first record is in one page, the second one and the COMMIT are in the next: a lost page shows an old record.
    """
    await run.open()
    await run.create("a")
    await run.create("b")
    for number in range(12):
        for _ in range(3):
            await _fill_pages(run)
        await run.truncate("a", 3 * number)
        await run.truncate("b", 3 * number)
        if number == 6:
            await run.close()
            await run.open()
        elif number == 7:
            await run.kill()
            await run.turns(40)  # the log of the dead process is released
            await run.open()
        elif number in (8, 9):
            task, halves = asyncio.get_running_loop().create_task(_fill_pages(run)), run.halves
            while run.halves == halves and not task.done():
                await run.turns(1)
            await run.kill()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await run.turns(40)
            await run.open()
    await run.idle()


async def recycles_long(run: Run) -> None:
    """Segments of several blocks that are used again, with a truncate after each append."""
    run.segment_bytes = 4 * SEGMENT_BYTES
    await run.open()
    await run.create("a")
    for number in range(60):
        await run.append("a", 9_000)
        await run.truncate("a", max(number - 3, 0))


async def spare_cut(run: Run) -> None:
    """A dead segment is kept as the spare; then the disk is full, and appends take the spare's space."""
    run.segment_bytes = 2 * SEGMENT_BYTES
    await run.open()
    await run.create("a")
    for _ in range(5):
        await run.append("a", 14_000)
    await run.truncate("a", 3)
    await run.idle()
    for _ in range(20):
        if isinstance(await run.append("a", 9_000), Exception):
            break
    await run.truncate("a", 30)
    await run.idle()
    for _ in range(3):
        await run.append("a", 14_000)


async def _fill_pages(run: Run) -> None:
    """Append to both queues in one batch that ends with a page, so that the next one begins with a page."""
    first = -(_end(run) + COMMIT_OFFSET) % 4_096
    at_a, at_b = _next(run, "a"), _next(run, "b")
    tasks = [run.begin_append("a", first, position=at_a)]
    tasks.append(run.begin_append("b", 4_096 - COMMIT_OFFSET - 72, position=at_b))
    await asyncio.gather(*tasks)


async def few_callers(run: Run) -> None:
    """One caller and few callers of one queue, across blocks and segments, with pauses and a truncate."""
    await run.open()
    await run.create("a")
    await run.idle(0.1)  # the writer sleeps, so what follows is its first case as far as it fits
    for size in (700, 0, 9_000, 12_000, 60):
        await run.append("a", size)
    await asyncio.gather(*(run.begin_append("a", 500) for _ in range(4)))
    await run.idle()  # the mark
    for _ in range(5):
        await run.append("a", 6_000)
    appended = run.begin_append("a", 300)
    await run.turns(1)
    await asyncio.gather(appended, run.begin("truncate", "a", position=5), run.begin_append("a", 200))
    await run.append("a", 100)
    run.begin_append("a", 100)
    await run.turns(2)
    await run.close()


async def small_recycled(run: Run) -> None:
    """One caller whose batches end in segments that are used again, by processes that die while one is written."""
    await run.open()
    await run.create("a")
    for turns in (0, 0, 2, 5, 7):
        await run.idle(0.1)  # the writer sleeps
        for size in (9_000, 9_000, 9_000, 200, 9_000):
            await run.append("a", size)
        assert run.log is not None
        await run.truncate("a", max(run.log.next_position("a") - 2, 0))
        await run.idle(0.1)
        await run.append("a", 300)
        if turns:
            task = run.begin_append("a", 500)
            await run.turns(turns)
            await run.kill()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await run.turns(40)  # the log of the dead process is released
            await run.open()
            await run.append("a", 40)
    await run.append("a", 40)


async def singles(run: Run) -> None:
    """Single records of several queues at the same time: repeated, truncated, deleted, over a roll and after it."""
    await run.open()
    queues = ["a", "b", "c", "d"]
    for queue in queues:
        await run.create(queue)
    for size in (20, 0, 300, 5_000, 40_000, 9_000):
        await asyncio.gather(*[run.begin_append(queue, size + number) for number, queue in enumerate([*queues, "b"])])
    tasks = [run.begin_append(queue, 60) for queue in queues]
    tasks += [run.begin("truncate", "a", position=5), run.begin("delete", "c"), run.begin("create", "c")]
    tasks += [run.begin_append(queue, 70) for queue in reversed(queues)]
    await asyncio.gather(*tasks)
    for queue in "bc":
        await run.truncate(queue, 30)
    await asyncio.gather(*[run.begin_append(queue, 80) for queue in queues])
    await run.idle()
    await run.append("a", 50, 50)


async def positions(run: Run) -> None:
    """Positions chosen by the caller, gaps, repeats, truncates past the end."""
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
    """Delete and recreate a queue, across a roll and a reopen. The new queue gets an id that was never used before."""
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
    """A log without live records rolls while it is idle, and is small again."""
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
    """Close, open, write, close and open again; and a process that dies right after it opened or wrote."""
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
    """A process that dies several times with calls in progress."""
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
    """Callers that cancel before, while and after the writer takes their calls."""
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


async def staged(run: Run) -> None:
    """A batch of several direct writes into space that was reserved and synced before."""
    await run.open()
    await run.create("a")
    await run.append("a", 300)
    await run.append("a", 7_000)  # reserves the rest of the segment
    await run.append("a", 14_000)
    await run.append("a", 200)


async def in_pieces(run: Run) -> None:
    """Large batches between small ones, of one record and of many, with blocks that are written again."""
    await run.open()
    await run.create("a")
    await run.append("a", 300)
    await asyncio.gather(run.begin_append("a", 13_000), run.begin_append("b", 60))
    await run.append("a", 200)
    await run.append("a", *[1_900] * 9)
    await run.append("a", 26_000)
    await run.truncate("a", 3)
    await run.append("a", 40)
    await run.close()
    await run.open()
    await run.append("a", *[1_300] * 40)


async def in_pieces_killed(run: Run) -> None:
    """A process that dies while pieces are under way, and its successor, which writes more of them."""
    await run.open()
    await run.create("a")
    for due in (1, 3):
        await run.append("a", 300)
        task = run.begin_append("a", *[2_100] * 9)
        while run.disk.writes_under_way() < due and not task.done():
            await run.turns(1)
        await run.kill()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await run.turns(60)
        await run.open()
    await run.append("a", *[1_700] * 9)
    await run.append("a", 30)


async def many_queues(run: Run) -> None:
    """A table of queues that is longer than a block."""
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
    """A policy that acknowledges before the sync. A power cut loses only whole batches after the last sync."""
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
    """Appends until the disk is full. Truncate and delete still work, and then appends work again."""
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


async def repeated_when_full(run: Run) -> None:
    """On a full disk a repeat of what is stored needs no space; behind a delete of its queue it repeats nothing."""
    await run.open()
    await run.create("a")
    await run.create("q")
    stored = run.payloads(40, 50, 60)
    await run.do("append", "q", position=0, payloads=stored)
    for _ in range(30):
        if isinstance(await run.append("a", 14_000), Exception):
            break
    await asyncio.gather(run.begin_append("a", 14_000), run.begin("append", "q", position=1, payloads=stored[1:]))
    await asyncio.gather(
        run.begin_append("a", 14_000),
        run.begin("delete", "q"),
        run.begin("append", "q", position=2, payloads=stored[2:]),
    )
    await run.truncate("a", 30)
    await run.idle()
    await run.append("a", 100)


async def created_when_full(run: Run) -> None:
    """On a disk that is nearly full, a create that finds no room takes no append of its batch along."""
    run.segment_bytes = 1 << 22
    await run.open()
    await run.create("a")
    for _ in range(30):
        if isinstance(await run.append("a", 30_000), Exception):
            break
    for number in range(12):
        appended = run.begin_append("a", 5)
        created = [run.begin("create", f"{number}-{other}".ljust(250, "q")) for other in range(60)]
        found = await asyncio.gather(appended, *created)
        if isinstance(found[-1], Exception):
            alone = await run.append("a", 5)
            is_refused = isinstance(found[0], Exception) and not isinstance(alone, Exception)
            if is_refused and run.disk.fault is None:
                raise Violation(f"an append was refused with a create of its batch: {found[0]!r}")
            break
    await run.truncate("a", 1_000)


async def cancelled_in_line(run: Run) -> None:
    """Callers that wait for a full disk and are cancelled: the log lets go of what they brought."""
    await run.open()
    await run.create("a")
    await asyncio.wait([run.begin_append("a", 14_000) for _ in range(30)], timeout=0.5)
    doomed = [run.begin_append("a", 9_000) for _ in range(8)]
    await run.turns(25)
    for call in doomed:
        call.cancel()
    await run.turns(25)
    kept = run.log.inspection.pending_records if run.log is not None else 0
    if kept > run.waiting:
        raise Violation(f"{kept} records are kept, and {run.waiting} callers wait")
    await run.truncate("a", 60)
    await run.idle()


async def groups(run: Run) -> None:
    """Single records of several queues in one batch, with callers that cancel at any moment; one queue is deleted."""
    await run.open()
    for name in ("a", "b", "c"):
        await run.create(name)
    for turns in (0, 1, 3, 4):
        tasks = [run.begin_append(name, 60 + number) for number in range(2) for name in ("a", "b", "c", "gone")]
        await run.turns(turns)
        tasks[1 + turns].cancel()
        tasks[6].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(run.begin_append(name, 10) for name in ("c", "a", "a", "c", "b")))
    await run.append("b", 300)


async def busy(run: Run) -> None:
    """Calls that wait while others are written, so that batches with records also name dead segments."""
    await run.open()
    await asyncio.gather(run.begin("create", "a"), run.begin("create", "b"))
    for number in range(8):
        tasks = [run.begin_append("a", 9_000), run.begin_append("b", 40)]
        await run.turns(2)
        tasks += [run.begin_append("a", 7_000), run.begin("truncate", "a", position=2 * number)]
        await run.turns(3)
        tasks += [run.begin_append("b", 30), run.begin("truncate", "b", position=2 * number - 1)] if number else []
        await asyncio.gather(*tasks)
    await run.append("b", 20)


async def loaded(run: Run) -> None:
    """A batch every tenth of a second, for several intervals, so that the log is never idle."""
    await run.open()
    await run.create("a")
    for number in range(24):
        await run.append("a", 40 + number)
        await run.idle(0.1)
    await run.truncate("a", 3)
    for _ in range(8):
        await run.idle(0.1)
        await run.append("a", 300)
    await run.idle()


async def waits_for_memory(run: Run) -> None:
    """Appends wait in line for memory. Some callers cancel while they wait; close ends those that still wait."""
    await run.open()
    await run.create("a")
    await run.create("b")
    tasks = [run.begin_append("a", 7_000 - number) for number in range(8)]
    tasks += [run.begin_append("b", 5_000), run.begin_append("b", 20, 30)]
    await run.turns(25)
    tasks[7].cancel()
    await run.truncate("a", 1)
    tasks.append(run.begin_append("a", 100))
    await run.truncate("a", 3)
    await run.idle()
    await run.truncate("a", 40)
    await run.truncate("b", 0)
    await asyncio.wait(tasks, timeout=5)
    in_order(tasks[:8])
    tasks += [run.begin_append("b", 9_000) for _ in range(7)]
    await run.turns(40)
    await run.delete("a")
    await run.close()
    await asyncio.gather(*tasks, return_exceptions=True)


async def waits_for_disk(run: Run) -> None:
    """Appends wait for disk space in order. A truncate admits them; close ends those that still wait."""
    await run.open()
    await run.create("a")
    await run.create("b")
    tasks = [run.begin_append("a", 14_000) for _ in range(20)]
    await run.idle(0.5)
    tasks += [run.begin_append("b", 300), run.begin_append("b", 20, 20)]
    await run.turns(25)
    tasks[18].cancel()
    await run.idle(3)
    await run.truncate("a", 3)
    await run.idle(4)
    await run.truncate("a", 60)
    await asyncio.wait(tasks, timeout=5)  # on a disk that stays full they keep waiting
    in_order(tasks[:20])
    tasks += [run.begin_append("b", 14_000) for _ in range(20)]
    await run.idle(0.5)
    await run.close()
    await asyncio.gather(*tasks, return_exceptions=True)


def in_order(tasks: list[asyncio.Future[object]]) -> None:
    """Raise Violation unless the acknowledged callers got ascending positions."""
    positions = [task.result() for task in tasks if task.done() and not task.cancelled()]
    answered = [position for position in positions if isinstance(position, int)]
    if answered != sorted(answered):
        raise Violation(f"calls that waited in line overtook one another: {answered}")


async def reserve(run: Run) -> None:
    """Small appends fill the disk as far as the reserve allows. Calls that may use the reserve still succeed."""
    run.segment_bytes = 1 << 22
    await run.open()
    await run.create("a")
    await run.create("b")
    for size in (9_000, 700, 60, 5):
        refused = 0
        for _ in range(40):
            refused += isinstance(await run.append("a", size), Exception)
            if refused == 2:
                break
    for position in range(0, 9, 2):
        await run.truncate("a", position)
    await run.delete("b")
    await run.truncate("a", 1_000)
    await run.idle()
    await run.append("a", 500)


async def reserve_of_tables(run: Run) -> None:
    """New queues on a disk that is nearly full. Each makes the table at the beginning of the next segment longer."""
    run.segment_bytes = 1 << 22
    await run.open()
    await run.create("a")
    for _ in range(30):
        if isinstance(await run.append("a", 30_000), Exception):
            break
    for number in range(4):
        names = [f"{number}-{other}".ljust(250, "q") for other in range(90)]
        await asyncio.gather(*(run.begin("create", name) for name in names))
    await run.truncate("a", 3)
    await run.truncate("a", 1_000)
    await run.idle()
    await run.append("a", 500)


async def torn(run: Run) -> None:
    """Processes that die in the middle of a write. The next one writes the same number of bytes in the same place."""
    await run.open()
    await run.create("a")
    await run.create("b")
    for number in range(10):
        size = 512 - (_end(run) + COMMIT_OFFSET) % 512
        # At a given position: two records of one group would share a log record, and the COMMIT would lie elsewhere.
        at = _next(run, "b")  # raises if a fault kept the queue from being created
        tasks = [run.begin_append("a", size), run.begin_append("b", 150 + number, position=at)]
        halves = run.halves
        while run.halves == halves and not tasks[0].done():
            await run.turns(1)
        await run.kill()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await run.open()
        await run.append("a", 512 - (_end(run) + OPENED_FRAME_BYTES + COMMIT_OFFSET) % 512)


def _end(run: Run) -> int:
    return log_end(run) if run.log is not None else 0


def log_end(run: Run) -> int:
    """Return where the last batch of the last segment ends, as the files say."""
    files = run.disk.content(DIRECTORY)
    content = files[segment_name(max(list_segments(list(files))))]
    header = decode_header(content[:HEADER_BYTES])
    parser = SegmentParser(header.log_id, header.segment, header.first_batch)
    for _ in parser.feed(content, 0):
        pass
    return parser.end


def _next(run: Run, queue: str) -> int:
    return run.log.next_position(queue) if run.log is not None else 0


async def copied(run: Run) -> None:
    """A snapshot of a log in use. Then the log continues, rolls, and frees everything that the copy still has."""
    await run.open()
    await run.create("a")
    await run.create("b")
    for _ in range(5):
        await asyncio.gather(run.begin_append("a", 13_000), run.begin_append("b", 40))
    tasks = [run.begin_append("a", 200), run.begin_append("b", 60)]
    await run.turns(3)
    await run.take_snapshot()
    await asyncio.gather(*tasks)
    await run.append("a", 15_000)
    await run.truncate("a", 3)
    await run.idle()
    await run.truncate("a", 50)
    await run.truncate("b", 50)
    await run.append("a", 15_000)
    await run.idle()


async def linked_in_flight(run: Run) -> None:
    """The segment gets a second name while a small batch is in flight: it goes back, before later calls."""
    await run.open()
    await run.create("a")
    await run.idle(0.1)  # the writer sleeps
    await run.append("a", 300)
    before, first = run.handed_over, run.begin_append("a", 500)
    while run.handed_over == before and not first.done():
        await run.turns(1)
    with suppress(OSError):
        run.disk.link(f"{DIRECTORY}/{segment_name(0)}", "/data/kept")
    await asyncio.gather(first, run.begin_append("a", 40), run.begin_append("a", 50))
    await run.append("a", 20)
    await run.truncate("a", 1)


async def copy_outlives(run: Run) -> None:
    """A snapshot of a log that then uses its own dead segments again, several times."""
    await run.open()
    await run.create("a")
    for _ in range(6):
        await run.append("a", 13_000)
    await run.take_snapshot()
    for position in range(2, 14):
        await run.append("a", 13_000)
        await run.truncate("a", position)
    await run.idle()


async def copy_drained(run: Run) -> None:
    """A snapshot that is opened, written and emptied while the original exists; then the same for the original."""
    await run.open()
    await run.create("a")
    await run.create("b")
    for _ in range(5):
        await asyncio.gather(run.begin_append("a", 13_000), run.begin_append("b", 40))
    copy = await run.take_snapshot()
    await copy.open()
    await copy.append("a", 300)
    await copy.truncate("a", 4)
    await run.append("a", 400)
    await copy.truncate("a", 50)
    await copy.truncate("b", 50)
    await copy.append("b", 14_000)
    await copy.idle()
    await run.truncate("b", 2)
    await copy.close()
    await run.truncate("a", 50)
    await run.append("b", 300)
    await run.idle()


async def changed_without_records(run: Run) -> None:
    """A log of several segments that is opened without its records: truncated, cut inside a batch, a queue deleted."""
    await run.open()
    await run.create("a")
    await run.create("b")
    for _ in range(4):
        await asyncio.gather(run.begin_append("a", 9_000, 4_000, 20), run.begin_append("b", 40))
    await run.close()
    await run.open_without_records()
    await run.truncate("a", 4)
    await run.close()
    await run.open_without_records()
    await run.truncate("a", 20)
    await run.delete("b")
    await run.idle()
    await run.close()
    await run.open()
    await run.append("a", 30)


def commit_at(distance: int) -> History:
    """Return a history whose second COMMIT would begin *distance* bytes before a block's end."""

    async def history(run: Run) -> None:
        await run.open()
        await run.create("a")
        await run.append("a", BLOCK_BYTES - log_end(run) - distance - COMMIT_OFFSET)
        await run.append("a", 10)

    return history


OPENED_FRAME_BYTES = 24
"""What the first batch after an open begins with."""

COMMIT_OFFSET = 7 + 21 + 8
"""Frame header, header of the APPEND record and two offsets: the bytes before the payload of a single record."""

NEVER = PersistPolicy.never()
INTERVAL = PersistPolicy.interval(0.5)

CASES = {
    "concurrent": Case(concurrent),
    "rolls": Case(rolls),
    "recycles": Case(recycles, stepping=True, may_refuse=True),
    "spare cut": Case(spare_cut, capacity_bytes=245_000, may_refuse=True),
    "few callers": Case(few_callers),
    "few callers, stepping": Case(few_callers, stepping=True),
    "few callers, prepared": Case(few_callers, has_prepared=True),
    "few callers, stepping, prepared": Case(few_callers, stepping=True, has_prepared=True),
    "rolls, prepared": Case(rolls, has_prepared=True),
    "small recycled, prepared": Case(small_recycled, has_prepared=True, may_refuse=True),
    "cancelled, prepared": Case(cancelled, has_prepared=True),
    "reopened, prepared": Case(reopened, has_prepared=True),
    "linked in flight, prepared": Case(linked_in_flight, has_prepared=True),
    "few callers, 4 KiB, prepared": Case(few_callers, has_prepared=True, sector_bytes=4_096),
    "singles": Case(singles),
    "singles, small": Case(singles, small=True, stepping=True),
    "never, singles": Case(singles, NEVER),
    "positions": Case(positions),
    "recreated": Case(recreated),
    "idle roll": Case(idle_roll, early_roll_bytes=4_096),
    "reopened": Case(reopened),
    "killed": Case(killed, may_refuse=True),
    "cancelled": Case(cancelled),
    "large": Case(large),
    "many queues": Case(many_queues),
    "interval": Case(weak, INTERVAL),
    "never": Case(weak, NEVER),
    "never, killed": Case(killed, NEVER, may_refuse=True),
    "never, rolls": Case(rolls, NEVER),
    "full disk": Case(full_disk, early_roll_bytes=4_096, capacity_bytes=420_000, may_refuse=True),
    "groups": Case(groups),
    "groups, stepping": Case(groups, stepping=True),
    "busy": Case(busy, stepping=True),
    "never, busy": Case(busy, NEVER, stepping=True),
    "interval, loaded": Case(loaded, INTERVAL),
    "waits for memory": Case(
        waits_for_memory, limits=Limits(memory_bytes=40_000, on_full="wait"), may_refuse=True, by_result=True
    ),
    "waits for disk": Case(
        waits_for_disk,
        limits=Limits(disk_bytes=420_000, on_full="wait"),
        early_roll_bytes=4_096,
        may_refuse=True,
        by_result=True,
    ),
    "waits for disk, full": Case(
        waits_for_disk, limits=Limits(on_full="wait"), capacity_bytes=410_000, may_refuse=True, by_result=True
    ),
    "reserve": Case(reserve, capacity_bytes=260_000, may_refuse=True),
    "reserve of tables": Case(reserve_of_tables, capacity_bytes=303_000, may_refuse=True),
    "torn": Case(torn, stepping=True, may_refuse=True),
    "copied": Case(copied, small=True),
    "linked in flight": Case(linked_in_flight),
    "copy outlives": Case(copy_outlives),
    "copy drained": Case(copy_drained, small=True),
    "changed without records": Case(changed_without_records),
    "rolls, small": Case(rolls, small=True, stepping=True),
    "large, small": Case(large, small=True),
    "concurrent, small": Case(concurrent, small=True, stepping=True),
    "cancelled, stepping": Case(cancelled, stepping=True),
    "killed, stepping": Case(killed, NEVER, stepping=True, may_refuse=True),
    "disk limit": Case(full_disk, limits=Limits(disk_bytes=420_000), early_roll_bytes=4_096, may_refuse=True),
    "staged": Case(staged, staging_bytes=2 * 4_096),
    "in pieces": Case(in_pieces, staging_bytes=10 * 4_096, piece_bytes=4_096),
    "in pieces, stepping": Case(in_pieces, stepping=True, staging_bytes=5 * 4_096, piece_bytes=2 * 4_096),
    "in pieces, 4 KiB": Case(in_pieces, staging_bytes=10 * 4_096, piece_bytes=4_096, sector_bytes=4_096),
    "in pieces, killed": Case(
        in_pieces_killed, stepping=True, may_refuse=True, staging_bytes=10 * 4_096, piece_bytes=4_096
    ),
    "in pieces, prepared": Case(in_pieces, has_prepared=True, staging_bytes=10 * 4_096, piece_bytes=4_096),
    "in pieces, stepping, prepared": Case(
        in_pieces, has_prepared=True, stepping=True, staging_bytes=5 * 4_096, piece_bytes=2 * 4_096
    ),
    "concurrent, cached": Case(concurrent, has_direct=False),
    "reopened, cached": Case(reopened, has_direct=False),
    "torn, cached": Case(torn, stepping=True, may_refuse=True, has_direct=False),
    "large, small, cached": Case(large, small=True, has_direct=False),
    "concurrent, 4 KiB": Case(concurrent, sector_bytes=4_096),
    "rolls, 4 KiB": Case(rolls, sector_bytes=4_096),
    "killed, 4 KiB": Case(killed, may_refuse=True, sector_bytes=4_096),
    "torn, 4 KiB": Case(torn, stepping=True, may_refuse=True, sector_bytes=4_096),
    "large, small, 4 KiB": Case(large, small=True, sector_bytes=4_096),
    "never, 4 KiB": Case(weak, NEVER, sector_bytes=4_096),
}

BATCHES_WHEN_FULL = {
    "repeated when full": Case(repeated_when_full, capacity_bytes=300_000, may_refuse=True),
    "created when full": Case(created_when_full, capacity_bytes=303_000, may_refuse=True),
    "cancelled in line": Case(
        cancelled_in_line, limits=Limits(on_full="wait"), capacity_bytes=300_000, may_refuse=True, by_result=True
    ),
}
"""Batches that a full disk refuses as a whole."""

KB = 1_000
_LITTLE = {
    "rolls": 128 * KB,
    "never, rolls": 128 * KB,
    "rolls, small": 64 * KB,
    "recycles": 32 * KB,
    "small recycled, prepared": 32 * KB,
    "few callers, stepping, prepared": 64 * KB,
    "singles": 256 * KB,
    "singles, small": 256 * KB,
    "large": 128 * KB,
    "large, small, cached": 128 * KB,
    "many queues": 256 * KB,
    "interval": 64 * KB,
    "never": 64 * KB,
    "full disk": 64 * KB,
    "disk limit": 64 * KB,
    "waits for memory": 64 * KB,
    "spare cut": 64 * KB,
    "busy": 32 * KB,
    "copied": 64 * KB,
    "copy outlives": 128 * KB,
    "copy drained": 64 * KB,
    "changed without records": 64 * KB,
    "in pieces, stepping, prepared": 128 * KB,
    "recreated": 32 * KB,
}
"""The memory of each history: little enough that segments are gathered, and enough for its largest call."""

LITTLE_MEMORY = {name: replace(CASES[name], memory_bytes=size) for name, size in _LITTLE.items()}
"""Histories whose segments are gathered, and leave memory."""
