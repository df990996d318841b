"""Kill a log's writer again and again, and count what is lost.

    pip install mrecordlog_async
    python examples/kill_it.py              # about 15 seconds, in a temporary directory
    python examples/kill_it.py 60 ./wal     # about a minute, in ./wal, which must not exist yet and stays

A process with 100 callers appends to four queues and reports each record once it is durable. After a second or two it
is killed with SIGKILL, wherever it is at that moment. Then every record that it reported is looked for in the files,
and the next process continues. Nothing may be lost, and nothing may be stored twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from threading import Timer

from mrecordlog_async import MultiRecordLog, ReadOnlyLog

CALLERS = 100
QUEUES = ("red", "green", "blue", "black")

Reported = dict[str, list[tuple[int, str]]]
"""Queue → position and payload of each record that was acknowledged."""


async def write(directory: str, life: str) -> None:
    """Append until this process is killed."""

    async def call(log: MultiRecordLog, caller: int) -> None:
        queue = QUEUES[caller % len(QUEUES)]
        for number in count():
            payload = f"{life}.{caller}.{number}"
            position = await log.append(queue, payload.encode())
            print(queue, position, payload, flush=True)  # written and synced: the reader of this line may rely on it

    async with MultiRecordLog.open(directory, queues=QUEUES) as log:
        print("open", flush=True)
        await asyncio.gather(*(call(log, caller) for caller in range(CALLERS)))


def kill_one(directory: str, life: int, seconds: float, reported: Reported) -> float:
    """Start a writer, kill it after *seconds*, and note what it reported; return how long it took to open the log."""
    begun = time.monotonic()
    command = [sys.executable, __file__, "write", directory, str(life)]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C waits until the writer is known
    # A session of its own: Ctrl-C is for this process alone.
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    killer = Timer(seconds, writer.kill)
    with writer:
        try:
            assert writer.stdout is not None
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            writer.stdout.readline()
            opened = time.monotonic() - begun
            killer.start()
            for line in writer.stdout:
                if line.endswith("\n"):  # the last one may be cut
                    queue, position, payload = line.split()
                    reported[queue].append((int(position), payload))
        except KeyboardInterrupt:
            writer.kill()
            raise
        finally:
            killer.cancel()
    if writer.returncode != -signal.SIGKILL:
        sys.exit("the writer ended by itself; its error is above")
    return opened


def losses(directory: str, reported: Reported) -> tuple[int, int]:
    """Return how many of the records that were *reported* are not in the log, and how many records it has twice."""
    lost = doubled = 0
    with ReadOnlyLog.open(directory) as log:
        for queue in QUEUES:
            stored = {position: payload.decode() for position, payload in log.range(queue)}
            lost += sum(stored.get(position) != payload for position, payload in reported[queue])
            doubled += len(stored) - len(set(stored.values()))
    return lost, doubled


def kill_it(seconds: float, directory: str) -> int:
    """Kill writers for *seconds*, and print what was lost; return the exit code."""
    reported: Reported = defaultdict(list)
    end, kills, lost, doubled = time.monotonic() + seconds, 0, 0, 0
    try:
        while not (lost or doubled) and (kills == 0 or time.monotonic() < end):
            opened = kill_one(directory, kills, min(random.uniform(0.5, 2.5), seconds), reported)
            kills += 1
            lost, doubled = losses(directory, reported)
            print(
                f"killed {kills:3}  had opened the log in {opened * 1e3:5.0f} ms  "
                f"acknowledged {sum(map(len, reported.values())):9,}  lost {lost}  stored twice {doubled}",
                flush=True,
            )
    except KeyboardInterrupt:
        if reported:
            lost, doubled = losses(directory, reported)
    total = sum(map(len, reported.values()))
    verdict = "PROMISE BROKEN" if lost or doubled else "promise kept"
    print(f"{verdict}: killed {kills} times; acknowledged {total:,}, lost {lost}, stored twice {doubled}")
    return 1 if lost or doubled else 0


def main() -> int:
    if sys.argv[1:2] == ["write"]:
        asyncio.run(write(*sys.argv[2:]))
    try:
        seconds, directory = float((sys.argv[1:] or ["15"])[0]), sys.argv[2] if len(sys.argv) > 2 else None
    except ValueError:
        sys.exit(__doc__)
    if directory is not None:
        if Path(directory).exists():
            sys.exit(f"{directory} exists; name a directory that does not exist yet: what it holds would count")
        return kill_it(seconds, directory)
    place = tempfile.mkdtemp(prefix="kill-it-")
    code = kill_it(seconds, os.path.join(place, "wal"))
    if code:
        print(f"the log is kept in {place}/wal")
    else:
        shutil.rmtree(place)
    return code


if __name__ == "__main__":
    sys.exit(main())
