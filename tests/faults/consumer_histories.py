"""Histories with consumers, their owners, options, seals and rules, of the kind that `histories` describes."""

from __future__ import annotations

import asyncio

from mrecordlog_async import Limits, PersistPolicy, QueueOptions

from .driver import Run
from .histories import Case

NEVER = PersistPolicy.never()

FIRST, SECOND = bytes(15) + b"1", bytes(15) + b"2"
"""Owners of consumers."""

KEEP = QueueOptions(keep="until_acknowledged")

LONG = "l" * 250
"""A consumer whose records soon fill a part of the reserve."""


async def consumers(run: Run) -> None:
    """Two consumers of a queue that keeps records for them, over rolls and a restart; one is fenced, one deleted."""
    await run.open()
    await run.do("create", "a", options=KEEP)
    await asyncio.gather(
        run.begin("rule", "*", consumer="lake"), run.begin_append("a", 300, 20), run.begin("create", "b")
    )
    await run.attach("a", "c")
    await run.do("consume", "a", consumer="d", position=1)
    await run.append("a", *[700] * 5)
    await asyncio.gather(
        run.begin_move("acknowledge", "a", "c", 2),
        run.begin_append("a", 40),
        run.begin_move("acknowledge", "a", "c", 1),
        run.begin_move("acknowledge", "a", "c", 99),
        run.begin_move("acknowledge", "a", "c", 4),
    )
    await run.append("a", 20_000)
    old = run.holders.get(("a", "c"))
    await run.attach("a", "c")
    holder = (old.queue_id, old.epoch) if old is not None else (0, 0)
    await run.do("acknowledge", "a", consumer="c", position=5, holder=holder)
    await run.append("a", 20_000)
    await asyncio.gather(
        run.begin("release", "a", consumer="d"),
        run.begin("truncate", "a", position=7),
        run.begin_move("seek", "a", "c", 6),
        run.begin("move", "b", consumer="lake", position=0),
        run.begin("delete", "a"),
    )
    await run.close()
    await run.open()
    await run.acknowledge("a", "c", 7)
    await run.create("e")
    await run.append("a", 20_000)
    await run.do("truncate", "a", position=9, forced=True)
    await asyncio.gather(run.begin("delete", "a", forced=True), run.begin_move("acknowledge", "a", "c", 8))
    await run.idle()


async def options(run: Run) -> None:
    """Queues that refuse or drop what is too much, options that change, and seals next to appends."""
    await run.open()
    await asyncio.gather(
        run.begin("create", "full", options=QueueOptions(max_records=4)),
        run.begin("create", "newest", options=QueueOptions(max_records=5, when_full="drop_oldest")),
        run.begin("create", "small", options=QueueOptions(max_bytes=900, when_full="drop_oldest")),
        run.begin("create", "free"),
    )
    for size in (30, 200):
        names = [name for _ in range(3) for name in ("full", "newest", "free", "small")]
        await asyncio.gather(*(run.begin_append(name, size) for name in names))
    await run.append("newest", *[50] * 4)
    await run.append("newest", *[50] * 6)
    await run.append("small", 901)
    await run.append("free", 30_000)
    await asyncio.gather(
        run.begin("configure", "full", options=QueueOptions(max_records=3)),
        run.begin("configure", "full", options=QueueOptions(max_records=3, when_full="drop_oldest")),
        run.begin_append("full", 10),
        run.begin("configure", "newest"),
        run.begin_append("newest", 10, 11, 12, 13),
        run.begin_append("free", 5),
        run.begin("seal", "free"),
        run.begin_append("free", 6),
        run.begin("seal", "free"),
    )
    await run.append("newest", 20_000)
    await run.close()
    await run.open()
    await run.append("free", 7)
    await run.append("small", 400, 300)
    await run.append("full", 20_000)
    await asyncio.gather(run.begin("delete", "free"), run.begin("create", "free"), run.begin_append("free", 8))
    await run.idle()


async def _begin_held(run: Run) -> None:
    """Create a queue that keeps records until they are acknowledged, with a holder that is past one of three."""
    await run.open()
    await run.do("create", "a", options=KEEP)
    await run.attach("a", "c")
    await run.append("a", 100, 100, 100)
    await run.acknowledge("a", "c", 0)


async def holders(run: Run) -> None:
    """A process that dies with holders. Under a weak policy they must attach again; without a crash they need not."""
    await _begin_held(run)
    begun = [run.begin_append("a", 50), run.begin_move("acknowledge", "a", "c", 1)]
    await run.turns(2)
    await run.kill()
    await asyncio.wait(begun)
    await run.open()
    await run.append("a", 60)
    await run.acknowledge("a", "c", 2)
    await run.attach("a", "c")
    await run.acknowledge("a", "c", 2)
    await run.close()
    await run.open()
    await run.append("a", 70, 80)
    await run.acknowledge("a", "c", 3)
    await run.sync()


async def zombie(run: Run) -> None:
    """A holder from before a crash that calls only after later restarts, next to one that attached meanwhile."""
    await run.open()
    await run.do("create", "a", options=KEEP)
    await run.attach("a", "c")
    await run.attach("a", "d")
    await run.append("a", 100, 100, 100)
    await run.kill()
    await run.open()
    await run.append("a", 60)
    await run.attach("a", "d")
    await run.close()
    await run.open()
    await run.acknowledge("a", "c", 1)
    await run.acknowledge("a", "d", 0)
    await run.acknowledge("a", "c", 2)
    await run.sync()


async def tools(run: Run) -> None:
    """Commands that open the directory after a crash and after a clean close, before a holder from then calls again."""
    await _begin_held(run)
    await run.kill()
    await run.open_without_records(PersistPolicy.always())
    await run.append("a", 60)
    await run.close()
    await run.open()
    await run.acknowledge("a", "c", 1)
    await run.attach("a", "d")
    await run.close()
    await run.open_without_records(PersistPolicy.always())
    await run.create("b")
    await run.close()
    await run.open()
    await run.acknowledge("a", "c", 1)
    await run.acknowledge("a", "d", 1)
    await run.sync()


async def owners(run: Run) -> None:
    """Consumers that belong to an owner, to another one by force, and to nobody; over a roll, a restart and a death."""
    await run.open()
    await run.do("create", "a", options=KEEP)
    await run.attach("a", "c", owner=FIRST)
    await run.append("a", 100, 100, 100)
    await run.attach("a", "c", owner=SECOND)
    await run.attach("a", "c")
    await run.acknowledge("a", "c", 0)
    await asyncio.gather(
        run.attach("a", "c", owner=SECOND, forced=True),
        run.attach("a", "c", owner=FIRST),
        run.begin("move", "a", consumer="c", position=1),
        run.begin("consume", "a", consumer="d"),
    )
    await run.append("a", 33_000)
    await run.close()
    await run.open()
    await run.attach("a", "c", owner=FIRST)
    await run.attach("a", "d", owner=FIRST)
    await run.append("a", 33_000)
    await run.kill()
    await run.open()
    await run.attach("a", "c", owner=SECOND)
    await run.acknowledge("a", "c", 1)
    await run.attach("a", "d", forced=True)
    await run.acknowledge("a", "d", 1)
    await run.sync()


async def rules(run: Run) -> None:
    """Rules of three patterns that give new queues consumers: made, removed and made again, and kept in tables."""
    await run.open()
    await asyncio.gather(
        run.begin("rule", "*", consumer="lake"),
        run.begin("create", "a1"),
        run.begin("rule", "a*", consumer="lake"),
        run.begin("rule", "a*", consumer="bill"),
        run.begin("create", "a2"),
        run.begin("unrule", "*", consumer="lake"),
        run.begin("create", "b"),
        run.begin("unrule", "*", consumer="lake"),
        run.begin("rule", "a*", consumer="bill", exist_ok=True),
    )
    await run.append("b", 33_000)
    await run.do("unrule", "a*", consumer="bill")
    await run.create("a3")
    await run.close()
    await run.open()
    await run.do("rule", "b*", consumer="bill")
    await run.delete("b")
    await run.create("b")
    await run.append("a3", 33_000)
    await run.do("unrule", "a*", consumer="lake")
    await run.kill()
    await run.open()
    await asyncio.gather(run.begin("create", "a4"), run.begin("create", "b2"), run.begin("rule", "*", consumer="lake"))
    await run.append("b2", 40)


async def reserve_of_consumers(run: Run) -> None:
    """A disk that appends have filled: what truncates succeeds, attaching does for a while, the rest is refused."""
    await run.open()
    await run.do("create", "kept", options=KEEP)
    await run.do("create", "other")
    await run.attach("kept", "c")
    await run.attach("other", "c")
    await run.do("consume", "other", consumer=LONG)
    await run.append("other", *[10] * 300)
    for _ in range(40):
        if not isinstance(await run.append("kept", 9_000), int):
            break
    while isinstance(await run.append("other", 10), int):
        pass
    for position in range(3):
        await run.acknowledge("other", "c", position)
        await run.attach("other", "c")
        await run.acknowledge("kept", "c", position)
    await run.do("seal", "other")
    await asyncio.gather(
        *(run.begin("attach", "other", consumer=LONG) for _ in range(200)),
        run.begin_move("acknowledge", "kept", "c", 3),
        run.begin_append("kept", 5_000),
    )
    await run.do("truncate", "other", position=10_000, forced=True)
    await run.acknowledge("kept", "c", 6)
    await run.idle()
    await run.append("kept", 500)


CONSUMER_CASES = {
    "consumers": Case(consumers),
    "consumers, stepping": Case(consumers, stepping=True, small=True),
    "never, consumers": Case(consumers, NEVER),
    "options": Case(options),
    "options, small": Case(options, small=True, stepping=True),
    "holders": Case(holders, may_refuse=True),
    "never, holders": Case(holders, NEVER, may_refuse=True),
    "zombie": Case(zombie, may_refuse=True),
    "never, zombie": Case(zombie, NEVER, may_refuse=True),
    "never, tools": Case(tools, NEVER, may_refuse=True),
    "owners": Case(owners, may_refuse=True),
    "rules": Case(rules),
    "never, rules": Case(rules, NEVER, may_refuse=True),
    "reserve of consumers": Case(reserve_of_consumers, capacity_bytes=300_000, may_refuse=True),
    "consumers below a limit": Case(
        reserve_of_consumers, limits=Limits(disk_bytes=420_000), early_roll_bytes=4_096, may_refuse=True
    ),
}
