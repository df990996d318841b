"""Consumers in real processes that are killed: nothing skipped, and nothing acknowledged comes back."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

from mrecordlog_async import MultiRecordLog
from tests.said import at_any_speed

from .test_process import SEGMENT_BYTES, start

KILLED = """
async def main():
    log = await open_log()
    await log.create_queue("q", exist_ok=True, options=QueueOptions(keep="until_acknowledged"))
    def report(what, first, last):
        os.write(1, b"%s %d %d\\n" % (what, first, last))
    async def produce():
        while True:
            position = log.next_position("q")
            assert await log.append_record("q", position, b"%d " % position * (1 + position % 40)) == position
            report(b"appended", position, position)
    async def consume():
        async with log.consumer("q", "c") as old, log.consumer("q", "c") as c:
            report(b"attached", c.position, c.epoch)
            async for batch in c.batches(max_records=20, max_wait=0.002):
                positions = range(batch.first_position, batch.next_position)
                assert batch.payloads() == [b"%d " % at * (1 + at % 40) for at in positions]
                report(b"delivered", batch.first_position, batch.last_position)
                try:
                    await old.acknowledge(batch)
                except ConsumerFencedError:
                    assert log.consumers("q")["c"].position <= batch.first_position
                else:
                    report(b"moved by a fenced holder", 0, 0)
                if batch.first_position % 3:
                    report(b"acknowledged", batch.first_position, await c.acknowledge(batch) - 1)
    await asyncio.gather(produce(), consume())
asyncio.run(main())
"""


class Life(NamedTuple):
    """What one process reported, each as pairs of positions."""

    attached: list[tuple[int, int]]
    delivered: list[tuple[int, int]]
    acknowledged: list[tuple[int, int]]
    appended: list[tuple[int, int]]


def killed_after(seconds: float, directory: Path, what: str) -> Life:
    """Run the process until it reports *what*, kill it some time later, and return its reports."""
    process = start(KILLED, directory)
    assert process.stdout is not None and process.stderr is not None
    lines = [process.stdout.readline()]
    while lines[-1] and not lines[-1].startswith(what):
        lines.append(process.stdout.readline())
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        lines.append(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.read().splitlines(keepends=True)
    process.wait()
    errors = process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert not at_any_speed(errors), errors
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in Life._fields}
    for line in lines:
        if line.endswith("\n"):
            what, first, last = line.rsplit(" ", 2)
            found[what].append((int(first), int(last)))
    return Life(**found)


async def test_kill_9_in_a_loop_skips_nothing_and_brings_nothing_back(directory: Path) -> None:
    """Each life goes on where the last acknowledgement was, without a gap; an epoch is never seen twice."""
    chance = random.Random(4)
    acknowledged, epochs, appended = 0, set[int](), -1
    for what in ["delivered"] * 4 + ["acknowledged"]:
        life = killed_after(chance.uniform(0.05, 0.4), directory, what)
        ((position, epoch),) = life.attached
        assert position >= acknowledged, "an acknowledgement came back"
        assert epoch not in epochs
        epochs.add(epoch)
        for first, last in life.delivered:
            assert first == position, "a record was skipped or delivered twice"
            position = last + 1
        acknowledged = max([acknowledged, *(last + 1 for _, last in life.acknowledged)])
        appended = max([appended, *(at for at, _ in life.appended)])
        async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
            stands = log.consumers("q")["c"].position
            assert acknowledged <= stands <= position
            assert log.first_position("q") == stands
            assert log.next_position("q") > appended
        acknowledged = stands
    assert acknowledged > 0
