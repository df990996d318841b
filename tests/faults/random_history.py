"""Random histories from a seed, with everything that the written ones contain, in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from mrecordlog_async import Limits, PersistPolicy, QueueOptions
from mrecordlog_async.format.controls import NO_OWNER

from .consumer_histories import FIRST, KEEP, SECOND
from .driver import History, Run
from .histories import Case
from .judge import BRANCHES_MAX

OPTIONS = [
    QueueOptions(),
    KEEP,
    replace(KEEP, max_records=4),
    replace(KEEP, keep_at_least=1_000),
    QueueOptions(max_records=9),
    QueueOptions(max_records=5, when_full="drop_oldest"),
    QueueOptions(max_bytes=60_000, when_full="drop_oldest"),
]
EXACT = [options for options in OPTIONS if options.when_full != "drop_oldest"]
"""Those whose effect the model knows where records have left memory: what is on the disk is dropped in larger parts."""
SIZES = [0, 1, 7, 40, 400, 505, 2_000, 9_000, 30_000, 32_700, 40_000]


def random_case(seed: int) -> Case:
    """Return a history of about thirty steps, with a random policy and random limits."""
    chance = random.Random(seed)
    policy = chance.choice(
        [PersistPolicy.always(), PersistPolicy.always(), PersistPolicy.interval(0.7), PersistPolicy.never()]
    )
    full = chance.random() < 0.2
    history = chance.randrange(1 << 30)
    case = Case(
        random_history(history),
        policy,
        Limits(disk_bytes=450_000) if full and chance.random() < 0.5 else Limits(),
        early_roll_bytes=chance.choice([2_000, 20_000, 1 << 20]),
        may_refuse=True,
        capacity_bytes=chance.randrange(300_000, 500_000) if full else None,
        small=chance.random() < 0.3,
        stepping=chance.random() < 0.4,
        has_prepared=chance.random() < 0.5,
        memory_bytes=chance.choice([0, 0, 32_000, 64_000, 200_000]),
    )
    return replace(case, history=random_history(history, EXACT)) if case.memory_bytes else case


def random_history(seed: int, options: Sequence[QueueOptions] = OPTIONS) -> History:
    """Return a history that makes the same calls every time; its queues have *options*."""

    async def history(run: Run) -> None:
        chance = random.Random(seed)
        names = ["a", "b", "c" * 40]
        tasks: list[asyncio.Future[object]] = []
        doubtful = 0
        of_settings = chance.choice([0.0, 0.0, 0.2, 0.5])
        await run.open()
        await run.create("a")
        for _ in range(chance.randrange(10, 45)):
            step = chance.random()
            queue = chance.choice(names)
            if chance.random() < of_settings:
                tasks.append(_change_settings(run, chance, options))
            elif step < 0.1:
                tasks += _append_singles(run, chance, names)
            elif step < 0.5:
                tasks.append(_append(run, chance, queue))
            elif step < 0.62:
                forced = chance.random() < 0.5
                tasks.append(run.begin("truncate", queue, position=_near(run, chance, queue, -6, 2), forced=forced))
            elif step < 0.70:
                tasks.append(run.begin("create", queue, exist_ok=chance.random() < 0.3))
            elif step < 0.73:
                tasks.append(run.begin("delete", queue, forced=chance.random() < 0.5))
            elif step < 0.75:
                tasks.append(run.begin("sync"))
            elif step < 0.85:
                await run.turns(chance.randrange(1, 9))
            elif step < 0.92:
                await _settle(tasks)
                await run.idle(chance.choice([0.1, 0.8, 2.5]))
            elif step < 0.95 and tasks and doubtful < BRANCHES_MAX - 6:
                doubtful += 1
                tasks[-1].cancel()
            elif step < 0.97:
                await _settle(tasks)
                if chance.random() < 0.3:
                    drained = asyncio.create_task(run.drain())
                    tasks += _append_singles(run, chance, names)
                    await _settle([drained, *tasks])
                await run.close()
                await run.open()
                doubtful = 0
            elif len([task for task in tasks if not task.done()]) + doubtful < BRANCHES_MAX:
                await run.kill()
                for task in tasks:
                    task.cancel()
                await _settle(tasks)
                await run.open()
                doubtful = 0
        await _settle(tasks)

    return history


def _append_singles(run: Run, chance: random.Random, queues: list[str]) -> list[asyncio.Future[object]]:
    """Begin calls with one record each; the log stores them as one MANY, and a large one as an APPEND."""
    calls, soon = range(chance.choice([2, 5, 7])), chance.random() < 0.3
    return [run.begin_append(chance.choice(queues), chance.choice(SIZES[:6] + SIZES[-1:]), soon=soon) for _ in calls]


def _change_settings(run: Run, chance: random.Random, options: Sequence[QueueOptions]) -> asyncio.Future[object]:
    """Begin a call about consumers, rules or options: of a holder if there is one, else of an operator."""
    queue, consumer = chance.choice(["a", "a", "b"]), chance.choice("de")
    position = _near(run, chance, queue, -4, 1)
    kind = chance.choice(["attach", "attach", "move", "consume", "release", "configure", "rule", "unrule", "seal"])
    if run.holders and chance.random() < 0.6:
        queue, consumer = chance.choice(sorted(run.holders))
        known = run.log is not None and run.log.queue_exists(queue)
        found = run.log.consumers(queue).get(consumer) if known and run.log is not None else None
        position = max((found.position if found is not None else 0) + chance.randint(-1, 2), 0)
        return run.begin_move(chance.choice(["acknowledge"] * 5 + ["seek"]), queue, consumer, position)
    if kind == "attach":
        owner, forced = chance.choice([NO_OWNER, FIRST, SECOND]), chance.random() < 0.5
        return asyncio.get_running_loop().create_task(run.attach(queue, consumer, owner=owner, forced=forced))
    if kind in ("rule", "unrule"):
        return run.begin(kind, chance.choice(["*", "a*"]), consumer=consumer)
    if kind == "configure":
        return run.begin("configure", queue, options=chance.choice(options))
    if kind == "seal" and chance.random() < 0.7:
        return run.begin("create", queue, options=chance.choice(options))
    return run.begin(kind, queue, consumer=consumer, position=position)


def _append(run: Run, chance: random.Random, queue: str) -> asyncio.Future[object]:
    sizes = [chance.choice(SIZES) for _ in range(chance.choice([1, 1, 1, 2, 5]))]
    if chance.random() < 0.25:
        return run.begin_append(queue, *sizes, position=_near(run, chance, queue, -2, 3))
    return run.begin_append(queue, *sizes)


def _near(run: Run, chance: random.Random, queue: str, below: int, above: int) -> int:
    known = run.log is not None and run.log.queue_exists(queue)
    base = run.log.next_position(queue) if known and run.log is not None else 0
    return max(base + chance.randint(below, above), 0)


async def _settle(tasks: list[asyncio.Future[object]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
    tasks.clear()
