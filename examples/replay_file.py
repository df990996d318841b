"""A real file through the service, with kill -9 in the middle.

Sends a file line by line to `mrecordlog serve` from 64 concurrent tasks, kills the service with SIGKILL when half of
the lines are acknowledged, restarts it, and shows that every acknowledged line is stored once and in order.

    python examples/replay_file.py                      # /var/log/dpkg.log
    python examples/replay_file.py FILE --dir ./wal     # any file; the log is kept

The lines are distributed over 16 queues. Each queue has a producer, which gives every line its position. So requests
run in parallel, lost requests are repeated, and the service can distinguish a repeat from a new line.
"""

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mrecordlog_async.client import Producer, RecordLogClient

QUEUES = 16
TASKS_PER_QUEUE = 4


class Server:
    """`mrecordlog serve` as a process that can be killed and restarted on the same port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        command = [sys.executable, "-m", "mrecordlog_async", "serve", str(self.directory), "--port", str(self.port)]
        # Without the settings of another service, such as its token, which this one would take for its own.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MRECORDLOG_")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"listening on (http://\S+:(\d+))", line):
                self.port = int(found[2])
                return found[1]
            print(line, end="", file=sys.stderr)
        raise SystemExit("the service did not start")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        _, messages = self.process.communicate()
        if self.process.returncode:
            print(messages, end="", file=sys.stderr)
        return self.process.returncode


class Replay:
    """The lines, and which of them were acknowledged."""

    def __init__(self, lines: list[bytes]) -> None:
        self.queues = [f"replay-{number:02}" for number in range(QUEUES)]
        self.dealt = {queue: lines[number::QUEUES] for number, queue in enumerate(self.queues)}
        self.acknowledged: dict[str, list[tuple[int, bytes]]] = {queue: [] for queue in self.queues}
        self.count = 0
        self.half = asyncio.Event()
        self.half_count = max(len(lines) // 2, 1)

    async def feed(self, client: RecordLogClient, queue: str) -> None:
        async with client.producer(queue, create=True) as producer:
            waiting = iter(self.dealt[queue])
            await asyncio.gather(*(self._feed_some(producer, waiting) for _ in range(TASKS_PER_QUEUE)))

    async def _feed_some(self, producer: Producer, waiting: Iterator[bytes]) -> None:
        for line in waiting:
            position = await producer.append_record(line)
            self.acknowledged[producer.queue].append((position, line))
            self.count += 1
            if self.count == self.half_count:
                self.half.set()


async def replay(file: Path, directory: Path) -> int:
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise SystemExit(f"{file}: {error.strerror}; name another file") from error
    if not lines:
        raise SystemExit(f"{file} has no lines")
    server, run = Server(directory), Replay(lines)
    address = server.start()
    print(f"{len(lines)} lines of {file} through {address} in {QUEUES * TASKS_PER_QUEUE} tasks")
    try:
        async with RecordLogClient(address) as client, asyncio.TaskGroup() as tasks:
            feeding = [tasks.create_task(run.feed(client, queue)) for queue in run.queues]
            await run.half.wait()  # if a task fails, the group ends this wait

            assert server.process is not None
            at_kill = {queue: list(found) for queue, found in run.acknowledged.items()}
            print(f"kill -9 {server.process.pid} after {sum(map(len, at_kill.values()))} acknowledged lines")
            server.kill()
            await asyncio.to_thread(server.start)

            await client.wait_ready()
            stored = {queue: await contents(client, queue) for queue in run.queues}
            lost = sum(stored[queue].get(position) != line for queue in run.queues for position, line in at_kill[queue])
            print(f"started again: {sum(map(len, stored.values()))} lines are there, {lost} acknowledged ones are lost")

            await asyncio.wait(feeding)
            found = [list((await contents(client, queue)).values()) for queue in run.queues]
            wrong = sum(found[number] != run.dealt[queue] for number, queue in enumerate(run.queues))
            again = deal_back(found)
            print(f"at the end: {len(again)} lines, {'the same file' if again == lines else 'NOT the same file'}")
    finally:
        code = server.stop()
    print(f"the service ended with exit code {code}")
    return 0 if not lost and not wrong and again == lines else 1


async def contents(client: RecordLogClient, queue: str) -> dict[int, bytes]:
    if not await client.queue_exists(queue):
        return {}
    return {position: payload async for position, payload in client.range(queue)}


def deal_back(found: list[list[bytes]]) -> list[bytes]:
    """Put the lines of all queues back into the order of the file."""
    longest = max(map(len, found))
    return [lines[number] for number in range(longest) for lines in found if number < len(lines)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=Path("/var/log/dpkg.log"))
    parser.add_argument("--dir", type=Path, help="where the log is to be; must not hold one yet (default: temporary)")
    arguments = parser.parse_args()
    if arguments.dir is not None:
        if arguments.dir.exists() and os.listdir(arguments.dir):
            parser.error(f"{arguments.dir} is not empty")
        code = asyncio.run(replay(arguments.file, arguments.dir))
        print(f"its log is in {arguments.dir}")
        return code
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(replay(arguments.file, Path(directory) / "wal"))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has background jobs ignore it
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: otherwise the service would outlive this program
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # Ctrl-C
        sys.exit(130)
