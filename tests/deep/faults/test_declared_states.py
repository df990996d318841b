"""Crashes while a program declares queues and consumers: no queue lacks its consumers, and none loses its beginning."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from mrecordlog_async import MultiRecordLog, PersistPolicy, QueueOptions
from mrecordlog_async.engine import declaring
from tests.faults.disk import Disk, Snapshot
from tests.faults.explore import Tally
from tests.faults.states import plans

DIRECTORY = "/data/log"
KEEP = QueueOptions(keep="until_acknowledged")
NEW = {"new": KEEP, "new-2": KEEP}
CONSUMERS = {"new": ["search", "archive"], "new-2": ["search"], "old": ["search", "archive"], "o*": ["billing"]}
DECLARED = {
    queue: {*names, *(["billing"] if queue == "old" else [])} for queue, names in CONSUMERS.items() if queue != "o*"
}


async def begin(disk: Disk) -> None:
    """Make a log with a queue that holds records, of which the first one is truncated, and no consumers."""
    async with MultiRecordLog.open(DIRECTORY, filesystem=disk, queues={"old": KEEP}) as log:
        await log.append_records("old", None, [b"0", b"1", b"2"])
        await log.truncate("old", 0)


async def moments(before: Snapshot, policy: PersistPolicy) -> list[Snapshot]:
    """Return the disk before each call of an opening that declares, and after it."""
    disk = Disk(before)
    found: list[Snapshot] = []
    disk.on_call = lambda call: found.append(disk.snapshot())
    log = await MultiRecordLog.open(DIRECTORY, filesystem=disk, persist_policy=policy, queues=NEW, consumers=CONSUMERS)
    disk.on_call = lambda call: None
    found.append(disk.snapshot())
    await log.close()
    return found


def left(found: list[Snapshot], chance: random.Random) -> Iterator[tuple[str, Disk]]:
    """Yield what a kill and power cuts leave at each moment."""
    for number, snapshot in enumerate(found):
        yield f"{number}, killed", snapshot.kill()
        for name, plan in plans(snapshot, chance):
            yield f"{number}, {name}", Disk(snapshot.cut(plan))


@pytest.mark.parametrize(
    ("policy", "at_once"),
    [
        pytest.param(PersistPolicy.always(), 1, id="always, in batches"),
        pytest.param(PersistPolicy.never(), 1_000, id="never, at once"),
        pytest.param(PersistPolicy.always(), 1_000, id="always, at once", marks=pytest.mark.nightly),
        pytest.param(PersistPolicy.never(), 1, id="never, in batches", marks=pytest.mark.nightly),
    ],
)
async def test_every_crash_of_a_declaration_leaves_consumers_that_miss_nothing(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tally: Tally,
    policy: PersistPolicy,
    at_once: int,
) -> None:
    """A queue has its consumers from its first moment; a new one of an old queue begins with what that retains."""
    monkeypatch.setattr(declaring, "AT_ONCE", at_once)
    disk = Disk()
    await begin(disk)
    found = await moments(disk.snapshot(), policy)
    for name, crashed in left(found, random.Random(1)):
        async with MultiRecordLog.open(DIRECTORY, filesystem=crashed) as log:
            for queue in NEW:
                if log.queue_exists(queue):
                    assert set(log.consumers(queue)) == DECLARED[queue], name
        async with MultiRecordLog.open(DIRECTORY, filesystem=crashed, queues=NEW, consumers=CONSUMERS) as log:
            for queue, names in DECLARED.items():
                first = log.first_position(queue)
                assert {one: at.position for one, at in log.consumers(queue).items()} == dict.fromkeys(names, first), (
                    name
                )
            assert [payload for _, payload in log.range("old")] == [b"1", b"2"], name
        tally.crash_states += 1
    assert not [record for record in caplog.records if "deleted" in record.getMessage()]
    assert len(found) > 10
