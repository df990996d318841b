"""What a signal ends says nothing of it: no traceback, no "Exception ignored", no warning of Python or of a library."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from tests.cli.running import mrecordlog
from tests.docs.blocks import ROOT
from tests.serving import Process, free_port

NOISE = re.compile(r"Traceback|Exception|Warning|Unclosed|never awaited|destroyed|never retrieved|Error")
NOT_OF_PYTHON = re.compile(
    r"Exception ignored (?!in: <module 'threading')|Warning|Unclosed|never awaited|destroyed|never retrieved"
)
"""What Ctrl-C must not make a script say that does not expect it.

The traceback is Python's. A second Ctrl-C interrupts its printing, or how Python ends its threads, with a few odd
lines in one of 150 scripts that import nothing of ours.
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMPORTING = "_socket."
"""A file that is loaded while the modules of any program are imported."""


class Program(NamedTuple):
    """What is started. ready: what it prints once it does its work. expects: Ctrl-C is its usual end."""

    arguments: Sequence[str]
    ready: str
    expects: bool = True


MRECORDLOG = ("-m", "mrecordlog_async")
CLIENT = """
import asyncio, sys
from mrecordlog_async.client import RecordLogClient

async def main():
    async with RecordLogClient(sys.argv[1]) as client, client.producer("sent", create=True) as producer:
        async with asyncio.TaskGroup() as tasks:
            async def send():
                while True:
                    await producer.append_record(b"x")
            async def follow():
                async for record in client.tail("q"):
                    print("follows", flush=True)
            async def consume():
                async with client.consumer("sent", "reader") as consumer:
                    async for batch in consumer.batches():
                        await consumer.acknowledge(batch)
            for work in [send] * 20 + [follow, consume]:
                tasks.create_task(work())

asyncio.run(main())
"""
BLOCKING_CLIENT = """
import sys
from mrecordlog_async.client import BlockingRecordLogClient

with BlockingRecordLogClient(sys.argv[1]) as client, client.producer("sent", create=True) as producer:
    while True:
        producer.append_record(b"x")
        print("stored", flush=True)
"""
LIBRARY = """
import asyncio, sys
from mrecordlog_async import MultiRecordLog

async def main():
    async with MultiRecordLog.open("./library", queues=["q"]) as log, asyncio.TaskGroup() as tasks:
        async def append():
            while True:
                await log.append("q", b"x")
        async def follow():
            async for record in log.tail("q"):
                print("follows", flush=True)
                await asyncio.sleep(0.01)
        for work in [append] * 20 + [follow]:
            tasks.create_task(work())

asyncio.run(main())
"""
APPLICATIONS = {
    "serve": Program((*MRECORDLOG, "serve", "./served", "--port", "PORT"), "listening on"),
    "cat of a service": Program((*MRECORDLOG, "cat", "URL", "q", "--follow"), "two coffees"),
    "cat of a directory": Program((*MRECORDLOG, "cat", "DIRECTORY", "q", "--follow"), "two coffees"),
    "consume": Program((*MRECORDLOG, "consume", "URL", "q", "--consumer", "c", "--create"), "two coffees"),
    "aiohttp_ingest": Program(("EXAMPLES/aiohttp_ingest.py", "./wal", "PORT"), "Running on"),
    "fastapi_ingest": Program(
        ("-m", "uvicorn", "--app-dir", "EXAMPLES", "fastapi_ingest:app", "--port", "PORT"), "Uvicorn running"
    ),
    "a client": Program(("-c", CLIENT, "URL"), "follows", expects=False),
    "a blocking client": Program(("-c", BLOCKING_CLIENT, "URL"), "stored", expects=False),
    "a log in a script": Program(("-c", LIBRARY), "follows", expects=False),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with Process(tmp_path_factory.mktemp("service") / "wal") as running:
        mrecordlog("append", running.address, "q", "--create", stdin="two coffees\n")
        yield running


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("log") / "wal"
    mrecordlog("append", place, "q", "--create", stdin="two coffees\n")
    return place


def _cases() -> Iterator[tuple[str, signal.Signals, str]]:
    """Yield each program with each signal, early and late, but for what is Python's own.

    At a Ctrl-C while modules are imported, no code of ours runs yet: Python prints a traceback for a script, and for
    uvicorn, which imports the application before it has a handler.
    """
    for name, number, when in product(APPLICATIONS, SIGNALS, ("it is imported", "it works")):
        arguments = APPLICATIONS[name].arguments
        is_command = arguments[: len(MRECORDLOG)] == MRECORDLOG
        if is_command or when == "it works" or number != signal.SIGINT:
            yield name, number, when


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("name", "number", "when"), list(_cases()))
def test_nothing_is_said_at_the_end_by_a_signal(
    tmp_path: Path, service: Process, directory: Path, name: str, number: signal.Signals, when: str
) -> None:
    """Early and late, once and twice. Only a script that does not expect Ctrl-C gets the traceback of Python."""
    program, random = APPLICATIONS[name], Random(f"{name} {number} {when}")
    # At a second Ctrl-C uvicorn gives up, and prints where the lifespan was cancelled. asyncio.run has it raise
    # wherever the loop is, which may lose a wake-up: a task then waits for ever, in its TaskGroup as well.
    is_of_others = number == signal.SIGINT and not {"uvicorn", CLIENT, LIBRARY}.isdisjoint(program.arguments)
    for times in (1,) if is_of_others else (1, 2):
        work = tmp_path / f"{times}"
        work.mkdir()
        said = _ended(_filled(program, service, directory), work, program.ready, when, [number] * times, random)
        unexpected = number == signal.SIGINT and not program.expects
        assert not (NOT_OF_PYTHON if unexpected else NOISE).search(said), said


def _filled(program: Program, service: Process, directory: Path) -> list[str]:
    values = {"URL": service.address, "DIRECTORY": str(directory), "PORT": str(free_port())}
    values["EXAMPLES"] = str(ROOT / "examples")
    return [re.sub("|".join(values), lambda found: values[found[0]], word) for word in program.arguments]


def _ended(
    arguments: list[str], work: Path, ready: str, when: str, signals: list[signal.Signals], random: Random
) -> str:
    """Start a program, send it *signals*, and return what it wrote to standard error after the first one."""
    output = work / "output"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with (
        output.open("wb") as file,
        subprocess.Popen(
            [sys.executable, *arguments], cwd=work, stdout=file, stderr=file, stdin=subprocess.PIPE, env=environment
        ) as process,
    ):
        try:
            while process.poll() is None and ready not in output.read_text():
                if when == "it is imported" and _has_loaded(process.pid, IMPORTING):
                    break
                time.sleep(0.001)
            before = output.read_text()
            for number in signals:
                process.send_signal(number)
                time.sleep(random.choice([0.0, 0.001, 0.02, 0.1]))  # whenever it comes, nothing is said
            process.wait(60)
        finally:
            process.kill()
    return output.read_text().removeprefix(before)


def _has_loaded(process: int, file: str) -> bool:
    with suppress(OSError):
        return file in Path(f"/proc/{process}/maps").read_text()
    return False
