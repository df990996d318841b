"""`serve` and the library with default limits in real cgroups: refused or moved to the disk, never killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrecordlog_async import Limits, MultiRecordLog
from mrecordlog_async.support.machine import GIB, MIB, MachineMemory, fit_budgets
from tests.deep import cgroups
from tests.deep.cgroups import Cgroup
from tests.service import adversary
from tests.service.adversary import Client
from tests.serving import free_port

RECORDS = "/v1/queues/victim/records"
FORMATS = ("*/*", "application/vnd.mrecordlog.runs")
REFUSED = {0, 413, 429, 507}
"""0: the connection was cut, as that of a reader that does not read."""


@pytest.fixture(scope="module", autouse=True)
def may_make_cgroups() -> None:
    if reason := cgroups.why_not():
        pytest.skip(reason)


class Service(Client):
    """`mrecordlog serve` in a cgroup."""

    def __init__(self, cgroup: Cgroup, directory: Path, *arguments: str) -> None:
        super().__init__(free_port())
        self.cgroup = cgroup
        self._said = directory.parent / "service.log"
        serve = [
            sys.executable,
            "-m",
            "mrecordlog_async",
            "serve",
            str(directory),
            "--port",
            str(self.port),
            *arguments,
        ]
        with self._said.open("a") as said:
            self.process = subprocess.Popen(cgroup.command([*serve, *arguments]), stderr=said)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def said(self) -> str:
        return self._said.read_text()

    async def ready(self) -> None:
        """Wait until its log is open."""
        while True:
            self.check("opening")
            try:
                if (await self.call("GET", "/readyz"))[0] == 200:
                    return
            except OSError:  # it does not listen yet
                pass
            await asyncio.sleep(0.05)

    def check(self, during: str) -> None:
        """Fail if it has ended; for the kernel's reason or another."""
        assert self.process.poll() is None, f"{during}: ended with {self.process.poll()}\n{self.said[-2_000:]}"
        assert not self.cgroup.kills, f"{during}: {self.cgroup.kills} kills"
        assert "Traceback" not in self.said, self.said[-4_000:]

    async def post(self, body: bytes, headers: str = "") -> int:
        try:
            return (await self.call("POST", RECORDS, body, headers))[0]
        except OSError:
            return 0

    async def summary(self) -> dict[str, int]:
        status, response = await self.call("GET", "/v1/queues/victim")
        assert status == 200
        found: dict[str, int] = json.loads(response)
        return found


async def append(service: Service, total_bytes: int, callers: int) -> Counter[int]:
    """Append records of 1 MiB, several at a time; return the statuses."""
    await service.call("PUT", "/v1/queues/victim?exist_ok=1")
    statuses, body, left = Counter[int](), os.urandom(MIB), iter(range(total_bytes // MIB))

    async def send() -> None:
        for _ in left:
            statuses[await service.post(body)] += 1

    await asyncio.gather(*(send() for _ in range(callers)))
    return statuses


async def send_bodies(service: Service, size: int) -> Counter[int]:
    """Send bodies of the largest size at the same time: one record, lines, and JSON."""
    record = fit_budgets({"record_bytes": None, "pending_bytes": None}, MachineMemory(size, ""))["record_bytes"]
    body = fit_budgets({"body_bytes": None, "bodies_bytes": None}, MachineMemory(size, ""))["body_bytes"]
    line = b"a" * 400
    statuses = Counter[int]()
    for content, headers in (
        (bytes(record), ""),
        ((line + b"\n") * (body // (len(line) + 1)), "Content-Type: application/x-ndjson\r\n"),
        (b'{"records":["' + b"A" * ((body - 20) // 4 * 4) + b'"]}', "Content-Type: application/json\r\n"),
    ):
        statuses.update(await asyncio.gather(*(service.post(content, headers) for _ in range(12))))
        service.check("bodies of the largest size")
    return statuses


async def read_nothing(service: Service) -> None:
    """Ask for everything in each format, and follow the queue, by 100 clients that read nothing."""
    paths = [(f"{RECORDS}?max_bytes=67108864", format_) for format_ in FORMATS] + [("/v1/queues/victim/tail", "*/*")]
    clients = [adversary.never_read(service, 5.0, path, accept) for path, accept in paths for _ in range(25)]
    await asyncio.gather(*clients)


async def press(service: Service, size: int, total_bytes: int) -> Counter[int]:
    """Do all of that, one after the other and then at once; return the statuses of the appends."""
    statuses = await append(service, total_bytes, 1)
    service.check("records")
    statuses += await append(service, total_bytes // 4, 16)
    service.check("records of 16 callers")
    statuses += await send_bodies(service, size)
    await read_nothing(service)
    service.check("readers that read nothing")
    found = await asyncio.gather(
        read_nothing(service), send_bodies(service, size), append(service, total_bytes // 8, 8)
    )
    service.check("all of it at once")
    return statuses + found[1] + found[2]


SIZES = [
    pytest.param(192 * MIB, id="192 MiB"),
    pytest.param(256 * MIB, id="256 MiB", marks=pytest.mark.nightly),
    pytest.param(GIB, id="1 GiB", marks=pytest.mark.nightly),
]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Return the directory of a log, on a disk: a tmpfs would be memory of the cgroup."""
    system = subprocess.run(["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True)
    if system.stdout.strip() == "tmpfs":
        pytest.skip("the folder for temporary files is memory")
    yield tmp_path / "wal"


@pytest.mark.parametrize("beyond_memory", ["disk", "refuse"])
@pytest.mark.parametrize("size", SIZES)
async def test_serve_is_never_killed_for_its_memory(directory: Path, size: int, beyond_memory: str) -> None:
    """Filled by records, bodies and readers, and opened again when it is full, after a kill and after an end."""
    total_bytes = size * 3 // 2 if beyond_memory == "disk" else size // 2
    with Cgroup(size) as cgroup:
        with Service(cgroup, directory, "--beyond-memory", beyond_memory) as service:
            await service.ready()
            statuses = await press(service, size, total_bytes)
            stored = await service.summary()
            assert statuses.keys() <= REFUSED | {200}
            assert stored["records"] >= statuses[200] >= (total_bytes // MIB if beyond_memory == "disk" else 20)
            assert statuses[429] > 0
            service.process.kill()
            service.process.wait()
        with Service(cgroup, directory, "--beyond-memory", beyond_memory) as service:
            await service.ready()
            assert (await service.summary())["records"] == stored["records"]
            await asyncio.gather(read_nothing(service), append(service, total_bytes // 4, 8))
            service.check("opened again")
            stored = await service.summary()
            service.process.terminate()
            assert service.process.wait() == 0
        with Service(cgroup, directory, "--beyond-memory", beyond_memory) as service:
            await service.ready()
            assert (await service.summary())["records"] == stored["records"]
        assert not cgroup.kills


async def test_a_log_of_a_larger_machine_is_served_in_a_small_container(directory: Path) -> None:
    """Its last segment alone is four times the container's memory, and has no gathered file."""
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=2 * GIB), queues=["victim"]) as log:
        for _ in range(192):
            await log.append_records("victim", None, [os.urandom(MIB)] * 4)
    with Cgroup(192 * MIB) as cgroup, Service(cgroup, directory) as service:
        await service.ready()
        assert (await service.summary())["records"] == 768
        assert (await append(service, 64 * MIB, 4))[200] > 0
        await read_nothing(service)
        service.check("a log of a larger machine")


async def test_serve_says_where_its_limits_come_from(directory: Path) -> None:
    """The file that limits the memory is named, as is the setting."""
    with Cgroup(400 * MIB) as cgroup, Service(cgroup, directory) as service:
        await service.ready()
        said = rf"memory limit 113\.3 MiB: half of what .* leave of 400\.0 MiB \({re.escape(str(cgroup.path))}/\S+\); "
        assert re.search(said + "set --memory-bytes", service.said), service.said
        assert "disk limit " in service.said


def test_serve_refuses_a_container_that_is_too_small(directory: Path) -> None:
    """With the number that it needs; who sets the limit of memory knows better, and is warned."""
    with Cgroup(160 * MIB) as cgroup:
        with Service(cgroup, directory) as service:
            assert service.process.wait() == 2
            assert "the service needs 192.0 MiB of memory and has 160.0 MiB" in service.said
            assert str(cgroup.path) in service.said and not directory.exists()
        with Service(cgroup, directory, "--memory-bytes", "200MiB") as service:
            asyncio.run(service.ready())
            assert "are more than the memory (160.0 MiB" in service.said


LIBRARY = """
import asyncio, os, sys
from mrecordlog_async import Limits, LogFullError, MultiRecordLog

async def main():
    async with MultiRecordLog.open(sys.argv[1], limits=Limits(beyond_memory=sys.argv[2]), queues=["q"]) as log:
        async def fill():
            for _ in range(64):
                try:
                    await log.append("q", os.urandom(1 << 20))
                except LogFullError:
                    return
        await asyncio.gather(*(fill() for _ in range(4)))
        print(log.limits.memory_bytes, log.next_position("q"))

asyncio.run(main())
"""


@pytest.mark.parametrize("beyond_memory", ["disk", pytest.param("refuse", marks=pytest.mark.nightly)])
def test_the_library_is_never_killed_for_its_memory(directory: Path, beyond_memory: str) -> None:
    """A new log, and one that is opened when it is full, in a program without anything else."""
    with Cgroup(192 * MIB) as cgroup:
        command = cgroup.command([sys.executable, "-c", LIBRARY, str(directory), beyond_memory])
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert not cgroup.kills
            limit, records = map(int, done.stdout.split())
            assert limit == 37 * MIB + 3 * MIB // 4
            assert records >= (256 if beyond_memory == "disk" else 30)
