"""Power cuts and kills while segments are gathered, leave memory and are read: nothing acknowledged is lost.

A gathered file is never synced: a crash may leave any part of it, with its name or without.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any

import pytest

from mrecordlog_async import Limits, MultiRecordLog, PersistPolicy
from mrecordlog_async.storage.filesystem import FileSystem
from tests.faults.disk import Disk, Snapshot
from tests.faults.states import some_plans

KIB = 1024
LIMITS = Limits(memory_bytes=192 * KIB, beyond_memory="disk")
DIRECTORY = "/data/log"
QUEUES = ("a", "b", "c")
MOMENTS = 6


class SharedDisk(Disk):
    """A disk for several threads: one call at a time."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.lock_of_calls = RLock()
        super().__init__(snapshot)


def _alone(name: str) -> Callable[..., Any]:
    method = getattr(Disk, name)

    @wraps(method)
    def call(self: SharedDisk, *arguments: Any, **options: Any) -> Any:
        with self.lock_of_calls:
            return method(self, *arguments, **options)

    return call


for _name, _method in vars(FileSystem).items():
    if not _name.startswith("_") and callable(_method):
        setattr(SharedDisk, _name, _alone(_name))


def payload(queue: str, position: int) -> bytes:
    """Return the payload of the record of *queue* at *position*."""
    return f"{queue}{position} ".encode() * (1 + position % 90)


class Story:
    """What was asked of the log and acknowledged, and the disk at some moments."""

    def __init__(self, policy: PersistPolicy, seed: int) -> None:
        self.disk = SharedDisk()
        self.policy = policy
        self.rng = random.Random(seed)
        self.stored = dict.fromkeys(QUEUES, 0)
        self.truncated = dict.fromkeys(QUEUES, 0)
        self.asked = dict.fromkeys(QUEUES, 0)
        self.moments: list[tuple[Snapshot, dict[str, int], dict[str, int], dict[str, int]]] = []
        self.calls = 0

    def on_call(self, call: str) -> None:
        """Take a snapshot before some of the calls that write or rename, once files are gathered."""
        self.calls += call in ("write", "write_durable", "rename", "unlink", "reserve", "set_size")
        names = self.disk.content(DIRECTORY) if self.disk.exists(DIRECTORY) else {}
        if self.calls % 23 or not any(".runs" in name for name in names) or len(self.moments) >= MOMENTS:
            return
        self.calls += 1
        if self.rng.random() < 0.3:
            states = dict(self.stored), dict(self.truncated), dict(self.asked)
            self.moments.append((self.disk.snapshot(), *states))

    async def run(self) -> None:
        """Write, truncate and read until there are enough moments."""
        log = await MultiRecordLog.open(
            DIRECTORY, filesystem=self.disk, limits=LIMITS, persist_policy=self.policy, segment_bytes=32 * KIB
        )
        self.disk.on_call = self.on_call
        for queue in QUEUES:
            await log.create_queue(queue)
        for turn in range(400):
            if len(self.moments) >= MOMENTS:
                break
            await asyncio.gather(*(self.append(log, queue) for queue in QUEUES))
            if turn % 9 == 8:
                queue = self.rng.choice(QUEUES)
                self.asked[queue] = self.rng.randrange(self.truncated[queue], self.stored[queue])
                await log.truncate(queue, self.asked[queue])
                self.truncated[queue] = self.asked[queue]
            if turn % 5 == 4:
                await log.fetch(self.rng.choice(QUEUES))
        self.disk.on_call = lambda call: None
        await log.close()

    async def append(self, log: MultiRecordLog, queue: str) -> None:
        """Append some records."""
        start = log.next_position(queue)
        payloads = [payload(queue, position) for position in range(start, start + 6)]
        assert await log.append_records(queue, start, payloads) == start + 5
        self.stored[queue] = start + 6


async def check(
    story: Story, disk: Disk, moment: tuple[Snapshot, dict[str, int], dict[str, int], dict[str, int]]
) -> None:
    """Open the log that a crash left, read everything from the disk and from memory, and compare."""
    _, stored, truncated, asked = moment
    shared = SharedDisk(disk.snapshot())
    async with MultiRecordLog.open(
        DIRECTORY, filesystem=shared, limits=LIMITS, persist_policy=story.policy, segment_bytes=32 * KIB
    ) as log:
        for queue in QUEUES:
            if not log.queue_exists(queue):
                assert not stored[queue]
                continue
            found = [record async for record in log.read(queue)]
            first, following = log.first_position(queue), log.next_position(queue)
            assert [record.position for record in found] == list(range(first, following))
            assert all(record.payload == payload(queue, record.position) for record in found)
            assert log.queue_summary(queue).records == len(found)
            assert first <= asked[queue] + 1
            if story.policy.syncs_each_batch:
                assert following >= stored[queue]
                assert first >= (truncated[queue] + 1 if truncated[queue] else 0)


@pytest.mark.parametrize("policy", [PersistPolicy.always(), PersistPolicy.never()], ids=["always", "never"])
@pytest.mark.parametrize("seed", range(2))
async def test_a_power_cut_while_segments_are_gathered_loses_nothing(policy: PersistPolicy, seed: int) -> None:
    """At any moment, with any part of what was not synced: the log opens, and no record is missing."""
    story = Story(policy, seed)
    await story.run()
    assert len(story.moments) == MOMENTS
    for moment in story.moments:
        await check(story, moment[0].kill(), moment)
        for _, plan in some_plans(moment[0], story.rng, 4):
            await check(story, moment[0].crash(plan), moment)
