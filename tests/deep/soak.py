"""A service with its drain for a night: `python -m tests.deep.soak DIR --hours 2.5`, again and again on the same DIR.

Ctrl-C or the end of the time stops it, and the next call continues: its state is in DIR/state.json, and the log, the
table stay. Producers append to a few queues, a consumer reads each record, and `mrecordlog drain`
moves them into a Delta table. A cycle has

1. load with everything up; a deploy, which is SIGTERM and a new process; a kill;
2. a lake that stands still: the drain is stopped until the log holds twice the memory that the service may use.
   Meanwhile there is another deploy, another kill, and a restore drill: snapshot, verify, open, compare every record;
3. the drain again. The load pauses until the log is empty; then each record must be in the table once, and what the
   service uses (memory, descriptors, threads, disk) is noted. It must not grow from cycle to cycle.

The first cycle of a new DIR runs version 0.2.0 out of the history of the repository, without step 2, which it cannot
do. Then service and drain are upgraded in place. Prometheus watches with the shipped rules, if it is
installed. `--attacks` runs the attacks of `tests.deep.service.under_attack` for MINUTES, and the real alerts of
`nox -s alerts`, next to the load.

Prints a line for each step and a summary; the exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen
from uuid import UUID

import pyarrow.compute as pc
from deltalake import DeltaTable

from mrecordlog_async import Limits, MultiRecordLog, QueueOptions, RecordLogError
from mrecordlog_async.client import RecordLogClient
from mrecordlog_async.options import KIB, MIB
from tests.deep.prometheus import Prometheus
from tests.serving import free_port
from tests.spark.processes import Process, wait_until
from tests.spark.producers import client_of

ROOT = Path(__file__).parents[2]
EARLIER = "58623fa"
"""The commit of version 0.2.0."""

QUEUES = ("orders", "clicks", "payments", "audit")
MEMORY_BYTES, SEGMENT_BYTES, DISK_BYTES = 64 * MIB, 4 * MIB, 4_096 * MIB
RESIDENT_BYTES_MAX = MEMORY_BYTES + 300 * MIB
RECORD_BYTES = 4 * KIB
BATCH = 20
"""Records of one append."""
OWNER = UUID("00000000-0000-4000-8000-000000000002")
GROWTH_MIB, GROWTH = 24, 1.1
"""How much more the last third of the cycles may use than the second one."""


@dataclass
class Used:
    """What the service uses at the end of a cycle, when the log is empty."""

    resident_mib: int
    descriptors: int
    threads: int
    disk_mib: int


@dataclass
class State:
    """What a call leaves to the next one. acknowledged, copied, stored: records by queue."""

    port: int
    seconds: float = 0.0
    upgraded: bool = False
    acknowledged: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))
    copied: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))
    stored: int = 0
    deploys: int = 0
    kills: int = 0
    stood_still: int = 0
    most_held_mib: int = 0
    restores: int = 0
    restored_records: int = 0
    peak_mib: int = 0
    slowest_append_seconds: float = 0.0
    used: list[Used] = field(default_factory=list)
    alerts: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> State:
        """Return what an earlier call left, or a new state."""
        if not path.exists():
            return cls(free_port())
        found = json.loads(path.read_text())
        return cls(**found | {"used": [Used(**each) for each in found["used"]]})

    def save(self, path: Path) -> None:
        """Replace the file: a kill leaves the old one or the new one."""
        new = path.with_suffix(f".{threading.get_ident()}")  # the thread that watches saves, too
        new.write_text(json.dumps(asdict(self), indent=1))
        new.replace(path)


def payload(queue: str, position: int) -> bytes:
    """Return the record that belongs there."""
    return f"{queue}:{position}".encode().ljust(RECORD_BYTES, b".")


class Load(threading.Thread):
    """Producers and readers, in a separate event loop."""

    def __init__(self, state: State, url: str, rate: float) -> None:
        super().__init__(daemon=True)
        self._state, self._url, self._pause_seconds = state, url, BATCH * len(QUEUES) / rate
        self._running, self._ending = threading.Event(), threading.Event()

    def resume(self) -> None:
        """Append again."""
        self._running.set()

    def pause(self) -> None:
        """Append nothing after the current calls."""
        self._running.clear()

    def end(self) -> None:
        """End all calls. What was under way is sent again by the next load."""
        self._ending.set()
        self.join()

    def run(self) -> None:
        asyncio.run(self._all())

    async def _all(self) -> None:
        tasks = [asyncio.create_task(each(queue)) for queue in QUEUES for each in (self._produce, self._copy)]
        while not self._ending.is_set() and not any(task.done() for task in tasks):
            await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                self._state.wrong.append(f"the load ended: {outcome!r}")

    async def _produce(self, queue: str) -> None:
        async with RecordLogClient(self._url) as client:
            await repeated(client.create_queue, queue, exist_ok=True, options=QueueOptions(keep="until_acknowledged"))
            for consumer in ("lake", "copy"):
                await repeated(client.create_consumer, queue, consumer, exist_ok=True)
            position = await repeated(client.next_position, queue)
            if position < self._state.acknowledged[queue]:
                self._state.wrong.append(f"{queue}: ends at {position}, acknowledged {self._state.acknowledged[queue]}")
            while True:
                records = [payload(queue, position + n) for n in range(BATCH)]
                begun = time.monotonic()
                await repeated(client.append_records, queue, position, records)
                self._state.slowest_append_seconds = max(self._state.slowest_append_seconds, time.monotonic() - begun)
                position += BATCH
                self._state.acknowledged[queue] = position
                await asyncio.sleep(self._pause_seconds)
                while not self._running.is_set():
                    await asyncio.sleep(0.05)

    async def _copy(self, queue: str) -> None:
        while True:
            with suppress(RecordLogError, OSError):
                async with RecordLogClient(self._url) as client:
                    await self._copy_once(client, queue)
            await asyncio.sleep(0.5)

    async def _copy_once(self, client: RecordLogClient, queue: str) -> None:
        async with client.consumer(queue, "copy", owner=OWNER, take_over=True) as consumer:
            async for batch in consumer.batches(max_records=500, max_wait=1.0):
                for position, record in batch:
                    if position > self._state.copied[queue] or record != payload(queue, position):
                        self._state.wrong.append(
                            f"{queue}: {position} after {self._state.copied[queue]}: {record[:40]!r}"
                        )
                    self._state.copied[queue] = max(self._state.copied[queue], position + 1)
                await consumer.acknowledge(batch)


async def repeated(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Make a call until it succeeds: a service that is down or full comes back."""
    while True:
        try:
            return await call(*arguments, **named)
        except (RecordLogError, OSError):
            await asyncio.sleep(0.5)


class Night:
    """One call."""

    def __init__(self, place: Path, state: State, seconds: float, step: float, rate: float) -> None:
        self.place, self.state, self.step = place, state, step
        self.end = time.monotonic() + seconds
        self.log, self.table = place / "log", place / "lake" / "table"
        self.url = f"http://127.0.0.1:{state.port}"
        self.load = Load(state, self.url, rate)
        self.prometheus: Prometheus | None = None
        self._began = time.monotonic()
        self._start_processes()

    def _start_processes(self) -> None:
        """Make the two processes of this version, or of the earlier one."""
        tree = ROOT if self.state.upgraded else earlier(self.place / "0.2.0")
        python = [sys.executable, "-m", "mrecordlog_async"]
        serve = ["serve", str(self.log), "--port", str(self.state.port), "--memory-bytes", str(MEMORY_BYTES)]
        serve += ["--segment-bytes", str(SEGMENT_BYTES), "--disk-bytes", str(DISK_BYTES)]
        serve += ["--beyond-memory", "disk"] if self.state.upgraded else []
        drain = ["drain", "--server", f"shop={self.url}", "--output", str(self.table), "--every", "5s"]
        # After the upgrade the positions of the checkpoint are taken into the table, once.
        keeps = "--migrate-from" if self.state.upgraded else "--checkpoint"
        drain += [keeps, str(self.place / "lake" / "checkpoint"), "--consumer", "lake", "--master", "local[2]"]
        environment = {"PYTHONPATH": str(tree)}
        self.service = Process([*python, *serve], self.place / "service.txt", environment)
        self.drain = Process([*python, *drain], self.place / "drain.txt", environment)

    def run(self) -> None:
        """Make cycles until the time is over."""
        self.start_service()
        self.load.start()
        self.load.resume()
        self.drain.start()
        watching = threading.Thread(target=self._watch, daemon=True)
        watching.start()
        try:
            while True:
                self._cycle()
                if not self.state.upgraded:
                    self._upgrade()
        except TimeoutError:
            self.say("the time is over")
        if self.drain.process is None:
            self.drain.start()
        self._catch_up()

    def _cycle(self) -> None:
        self.let_run()
        self.deploy()
        self.let_run()
        self.kill()
        self.let_run()
        if self.state.upgraded:
            self._stand_still()
        self._catch_up()
        self.load.resume()
        self.state.used.append(self._used())
        self.say(f"cycle: {self.state.used[-1]}")

    def _stand_still(self) -> None:
        """Stop the drain until the log holds twice what memory may, and do there what is done at any time."""
        self.drain.terminate()
        held = 0
        while held < 2 * MEMORY_BYTES:
            self.let_run(1.0)
            held = self._held_bytes()
        self.state.stood_still += 1
        self.state.most_held_mib = max(self.state.most_held_mib, held // MIB)
        self.say(f"the lake stands still: {held // MIB} MiB are held")
        self.restore()
        self.deploy()
        self.kill()
        self.drain.start()

    def _upgrade(self) -> None:
        self.drain.terminate()
        self.stop_service()
        self.state.upgraded = True
        self._start_processes()
        self.start_service()
        self.drain.start()
        self.say("upgraded from 0.2.0")

    # The service.

    def start_service(self) -> None:
        """Start it, and wait until it is ready."""
        self.service.start()
        wait_until(lambda: self._get("/readyz") is not None, "the service is not ready")

    def stop_service(self) -> None:
        """End it as a supervisor does."""
        code = self.service.terminate()
        if code:
            self.state.wrong.append(f"the service ended with {code}: {self.service.said()[-500:]}")

    def deploy(self) -> None:
        """End the service and start it again."""
        self.stop_service()
        self.start_service()
        self.state.deploys += 1
        self.say("deployed")

    def kill(self) -> None:
        """Kill the service and start it again."""
        self.service.kill()
        self.start_service()
        self.state.kills += 1
        self.say("killed and started again")

    # What is checked.

    def restore(self) -> None:
        """Copy the log that is being written, and compare each record of the copy; nothing acknowledged is missing."""
        copy = self.place / "restored"
        shutil.rmtree(copy, ignore_errors=True)
        acknowledged = dict(self.state.acknowledged)
        for command in (["snapshot", str(self.log), str(copy)], ["verify", str(copy)]):
            run([sys.executable, "-m", "mrecordlog_async", *command])
        self.state.restored_records += asyncio.run(self._compared(copy, acknowledged))
        self.state.restores += 1
        shutil.rmtree(copy)
        self.say("restored a snapshot and compared it")

    async def _compared(self, copy: Path, acknowledged: dict[str, int]) -> int:
        records = 0
        async with MultiRecordLog.open(copy, limits=limits()) as log:
            for queue, end in acknowledged.items():
                expected = log.first_position(queue)
                async for position, record in log.read(queue):
                    if position != expected or record != payload(queue, position):
                        self.state.wrong.append(f"restored {queue}: {position} at {expected}: {bytes(record)[:40]!r}")
                        break
                    expected, records = expected + 1, records + 1
                if expected < end:
                    self.state.wrong.append(f"restored {queue}: ends at {expected}, acknowledged were {end}")
        return records

    def _catch_up(self) -> None:
        """Pause the load until the log is empty. Then each record is in the table once, and was copied."""
        self.load.pause()
        wait_until(self._is_empty, f"the drain does not catch up: {self.drain.said()[-2_000:]}")
        self._check_table()

    def _is_empty(self) -> bool:
        if self.drain.ended is not None:
            raise AssertionError(f"the drain ended: {self.drain.said()[-2_000:]}")
        time.sleep(0.5)
        client = client_of("shop", self.url)
        try:
            left = sum(queue.records for queue in client.listing().queues.values())
        finally:
            client.close()
        return left == 0 and self.state.copied == self.state.acknowledged

    def _check_table(self) -> None:
        rows = DeltaTable(str(self.table)).to_pyarrow_dataset()
        total = 0
        for queue, stop in self.state.acknowledged.items():
            found = sorted(
                rows.to_table(columns=["position"], filter=pc.field("queue") == queue)["position"].to_pylist()
            )
            if found != list(range(stop)):
                twice, missing = len(found) - len({*found}), {*range(stop)} - {*found}
                self.state.wrong.append(
                    f"table, {queue}: {len(missing)} of {stop} are missing, {twice} are there twice"
                )
            total += len(found)
        self.state.stored = total

    def _used(self) -> Used:
        assert self.service.process is not None
        of = Path("/proc", str(self.service.process.pid))
        status = dict(line.split(":", 1) for line in (of / "status").read_text().splitlines())
        disk = sum(path.stat().st_size for path in self.log.rglob("*") if path.is_file())
        threads, resident = int(status["Threads"]), int(status["VmRSS"].split()[0]) // 1024
        return Used(resident, len(os.listdir(of / "fd")), threads, disk // MIB)

    def _held_bytes(self) -> int:
        client = client_of("shop", self.url)
        try:
            return sum(queue.bytes for queue in client.listing().queues.values())
        finally:
            client.close()

    def _watch(self) -> None:
        """Note the peak of memory and which alerts fire, and save the state."""
        while True:
            with suppress(OSError, AttributeError, KeyError, ValueError, AssertionError):
                self.state.peak_mib = max(self.state.peak_mib, self._used().resident_mib)
            if self.prometheus is not None:
                with suppress(AssertionError):
                    self.state.alerts = sorted({*self.state.alerts, *(name for name, _ in self.prometheus.firing())})
            self.state.save(self.place / "state.json")
            time.sleep(2.0)

    # Time.

    def let_run(self, seconds: float = 0.0) -> None:
        """Let everything run for a step, or for *seconds*. Raises TimeoutError at the end of this call."""
        until = min(self.end, time.monotonic() + (seconds or self.step))
        while (left := until - time.monotonic()) > 0:
            assert self.load.is_alive() and self.drain_is_well(), f"{self.state.wrong} {self.drain.said()[-2_000:]}"
            time.sleep(min(left, 1.0))
        if time.monotonic() >= self.end:
            raise TimeoutError

    def drain_is_well(self) -> bool:
        """Return whether the drain runs, or was stopped on purpose."""
        return self.drain.process is None or self.drain.ended is None

    def say(self, text: str) -> None:
        """Print a line with the time."""
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def _get(self, path: str) -> bytes | None:
        assert self.service.ended is None, self.service.said()[-2_000:]
        with suppress(OSError), urlopen(self.url + path, timeout=10) as response:
            body: bytes = response.read()
            return body
        return None

    def stop(self) -> None:
        """End everything; the next call continues."""
        self.load.end()
        if self.drain.process is not None:
            self.drain.terminate()
        if self.service.process is not None:
            self.stop_service()
        self.state.seconds += time.monotonic() - self._began
        self.state.save(self.place / "state.json")


def limits() -> Limits:
    """Return the limits with which a copy is opened: those of the service."""
    return Limits(memory_bytes=MEMORY_BYTES, beyond_memory="disk")


def earlier(place: Path) -> Path:
    """Put the package of version 0.2.0 into *place*; return it."""
    if not place.exists():
        names = ["mrecordlog_async", "pyspark_mrecordlog.py", "pyproject.toml"]
        packed = subprocess.run(["git", "archive", EARLIER, *names], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(place, filter="data")
    return place


def run(command: list[str]) -> None:
    """Run a command; AssertionError with what it printed if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"{command[3:]}: {done.stdout[-1_000:]}{done.stderr[-1_000:]}"


def judged(state: State) -> list[str]:
    """Return what is wrong, over all calls."""
    wrong = list(state.wrong)
    if state.peak_mib * MIB > RESIDENT_BYTES_MAX:
        wrong.append(f"memory reached {state.peak_mib} MiB, the bound is {RESIDENT_BYTES_MAX // MIB}")
    third = len(state.used) // 3
    if third >= 2:
        for name, more in (("resident_mib", GROWTH_MIB), ("descriptors", 8), ("threads", 4), ("disk_mib", 32)):
            before, now = (
                median(getattr(each, name) for each in part)
                for part in (state.used[third : 2 * third], state.used[-third:])
            )
            if now > before * GROWTH + more:
                wrong.append(f"{name} grew from {before} to {now}")
    if state.kills and shutil.which("prometheus") and state.seconds > 600 and "MrecordlogNotClosed" not in state.alerts:
        wrong.append("no alert for a killed service")
    return wrong


def summary(state: State) -> str:
    """Return what was done and measured, over all calls."""
    return "\n".join(
        [
            f"{state.seconds / 3600:.2f} h, {len(state.used)} cycles, {state.deploys} deploys, {state.kills} kills"
            f"{', upgraded from 0.2.0' if state.upgraded else ''}",
            f"{sum(state.acknowledged.values())} records acknowledged, "
            f"{sum(state.copied.values())} read by a consumer, {state.stored} in the table, each once",
            f"the lake stood still {state.stood_still} times: up to {state.most_held_mib} MiB were held, "
            f"{MEMORY_BYTES // MIB} are allowed in memory",
            f"{state.restores} snapshots restored, {state.restored_records} records compared",
            f"memory: peak {state.peak_mib} MiB; slowest append {state.slowest_append_seconds:.1f} s, outages included",
            f"at the end of cycles: first {state.used[:1]}, last {state.used[-1:]}",
            f"alerts that fired: {', '.join(state.alerts) or 'none'}",
            *(f"beside: {line}" for line in state.beside),
        ]
    )


@contextmanager
def beside(directory: Path, state: State, minutes: float) -> Iterator[None]:
    """Run the attacks and the real alerts next to the load, note how they ended, and keep what they print."""
    if not minutes:
        yield
        return
    commands = {
        "attacks.txt": [sys.executable, "-m", "tests.deep.service.under_attack", "--minutes", str(minutes)],
        "alerts.txt": [sys.executable, "-m", "pytest", "-q", "--nightly", "tests/deep/examples/test_prometheus.py"],
    }
    started = {}
    for name, command in commands.items():
        with (directory / name).open("wb") as output:
            started[name] = subprocess.Popen(command, cwd=ROOT, stdout=output)
    try:
        yield
    finally:
        for name, process in started.items():
            code = process.wait()
            last = (directory / name).read_text(errors="replace").strip().splitlines()[-1:]
            state.beside.append(f"{' '.join(commands[name][2:])}: {' '.join(last)}")
            if code:
                state.wrong.append(f"{' '.join(commands[name][2:])} ended with {code}: {last}; see {name}")


def main() -> int:
    """Run it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--hours", type=float, default=2.5)
    parser.add_argument("--step", type=float, default=60.0, help="seconds between two events of a cycle")
    parser.add_argument("--rate", type=float, default=400.0, help="records per second")
    parser.add_argument("--attacks", type=float, default=0.0, metavar="MINUTES", help="run attacks and alerts, too")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without it
    state = State.load(arguments.directory / "state.json")
    night = Night(arguments.directory, state, arguments.hours * 3600, arguments.step, arguments.rate)
    with ExitStack() as running:
        if shutil.which("prometheus"):
            night.prometheus = running.enter_context(Prometheus(arguments.directory / "prometheus", [state.port]))
        running.enter_context(beside(arguments.directory, state, arguments.attacks))
        running.callback(night.stop)
        try:
            night.run()
        except KeyboardInterrupt:
            night.say("stopped; the same command continues")
        except AssertionError as error:
            state.wrong.append(str(error) or repr(error))
    print(summary(state))
    wrong = judged(state)
    print("\n".join(wrong) if wrong else "nothing is wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
