"""0.2.0 opens a log of which most records left memory: gathered files are nothing to it, and it keeps all in memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from mrecordlog_async import Limits, MultiRecordLog
from tests.docs.blocks import ROOT

RELEASE = "58623fa"
"""The commit that 0.2.0 was built from."""
LIMITS = Limits(memory_bytes=1 << 20, beyond_memory="disk")
SHOW = """
import asyncio, json, sys
from hashlib import sha256
from mrecordlog_async import MultiRecordLog, __file__

async def show():
    async with MultiRecordLog.open(sys.argv[1]) as log:
        found = {}
        for queue in log.list_queues():
            digest = sha256()
            for position, payload in log.range(queue):
                digest.update(b"%d %d " % (position, len(payload)) + payload)
            found[queue] = [log.first_position(queue), log.next_position(queue), digest.hexdigest()]
        await log.append_record("q0", None, b"from 0.2.0")
        print(json.dumps([__file__, found]))

asyncio.run(show())
"""


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """Return a directory with the package of 0.2.0."""
    archive = subprocess.run(["git", "archive", RELEASE, "mrecordlog_async"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the history of git with {RELEASE}, of which 0.2.0 was built, is missing here")
    directory = tmp_path / "0.2.0"
    directory.mkdir()
    subprocess.run(["tar", "x", "-C", str(directory)], input=archive.stdout, check=True)
    return directory


async def contents(log: MultiRecordLog) -> dict[str, list[object]]:
    """Return positions and a digest of the records of each queue."""
    found: dict[str, list[object]] = {}
    for queue in log.list_queues():
        digest = sha256()
        async for position, payload in log.read(queue):
            digest.update(b"%d %d " % (position, len(payload)) + payload)
        found[queue] = [log.first_position(queue), log.next_position(queue), digest.hexdigest()]
    return found


async def write(log: MultiRecordLog) -> None:
    """Append several times what memory holds, truncate some of it, and have only one queue grow at the end."""
    rng = random.Random(4)
    await log.create_queues([f"q{number}" for number in range(5)])
    for step in range(300):
        queue = f"q{rng.randrange(5)}"
        position = log.next_position(queue) + (rng.choice([0, 0, 7]) if queue == "q4" else 0)
        await log.append_records(queue, position, [rng.randbytes(rng.choice([10, 700, 3_000]))] * rng.choice([1, 20]))
        if step % 50 == 49:
            await log.truncate(queue, (log.first_position(queue) + log.next_position(queue)) // 3)


async def test_0_2_0_opens_a_log_that_is_larger_than_its_memory(directory: Path, released: Path) -> None:
    """It reads every record, and what it appends is there when this version opens the log again."""
    async with MultiRecordLog.open(directory, limits=LIMITS, segment_bytes=128 << 10) as log:
        await write(log)
        expected = await contents(log)
    assert len(list(directory.glob("*.runs"))) > 10
    script = [sys.executable, "-c", SHOW, str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(released)}
    shown = subprocess.run(script, env=environment, cwd=released, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    file, found = json.loads(shown.stdout)
    assert Path(file).is_relative_to(released)
    assert found == expected
    async with MultiRecordLog.open(directory, limits=LIMITS, segment_bytes=128 << 10) as log:
        q0 = expected.pop("q0")
        later = await contents(log)
        assert later.pop("q0")[1] == int(str(q0[1])) + 1
        assert later == expected
