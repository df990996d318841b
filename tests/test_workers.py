"""Workers inside an application: started again, given up, and ended with the application, in both embeds."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fastapi import FastAPI

from mrecordlog_async import LogState, MultiRecordLog, QueueOptions
from mrecordlog_async.aiohttp import LOG, setup
from mrecordlog_async.embedding import Supervision, check_options
from mrecordlog_async.engine.inspection import Inspection
from mrecordlog_async.fastapi import lifespan, log_of, mount
from tests.asgi import call_asgi

Embed = Callable[..., AbstractAsyncContextManager[MultiRecordLog]]

KEPT = {"q": QueueOptions(keep="until_acknowledged")}


@asynccontextmanager
async def in_fastapi(directory: Path, **options: Any) -> AsyncIterator[MultiRecordLog]:
    """Run a FastAPI application with its log, without a server."""
    app = FastAPI(lifespan=lifespan(directory, **options))
    async with app.router.lifespan_context(app):
        yield log_of(app)


@asynccontextmanager
async def in_aiohttp(directory: Path, **options: Any) -> AsyncIterator[MultiRecordLog]:
    """Run an aiohttp application with its log, without a server."""
    app = web.Application()
    setup(app, directory, **options)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        yield app[LOG]
    finally:
        await runner.cleanup()


@pytest.fixture(params=[in_fastapi, in_aiohttp])
def embed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Embed:
    """Either embed; workers that failed are started again at once."""
    monkeypatch.setattr("mrecordlog_async.embedding.FIRST_PAUSE_SECONDS", 0.0)
    found: Embed = request.param
    return found


async def until(is_true: Callable[[], bool]) -> None:
    """Let the others run until this is true."""
    while not is_true():
        await asyncio.sleep(0)


PLACES = (
    "before it attaches",
    "as it attaches",
    "before the first batch",
    "with a batch",
    "with half of a batch",
    "after the second stage has it",
    "before it acknowledges",
    "after it acknowledged",
    "as it leaves the consumer",
    "after it left the consumer",
)


class Failing:
    """A worker of two stages that raises once at each of `PLACES`, one after the other, and works otherwise."""

    def __init__(self) -> None:
        self.left = list(PLACES)
        self.first_stage: list[bytes] = []

    def at(self, place: str) -> None:
        """Raise if it is this place's turn."""
        if self.left and self.left[0] == place:
            self.left.pop(0)
            raise ConnectionResetError(place)

    async def __call__(self, log: MultiRecordLog) -> None:
        self.at("before it attaches")
        consumer = log.consumer("q", "c")
        self.at("as it attaches")
        async with consumer:
            self.at("before the first batch")
            async for batch in consumer.batches(max_records=2, max_wait=0):
                self.at("with a batch")
                for payload in batch.payloads():
                    self.first_stage.append(payload)
                    self.at("with half of a batch")
                await log.append("second", b"".join(batch.payloads()))
                self.at("after the second stage has it")
                self.at("before it acknowledges")
                await consumer.acknowledge(batch)
                self.at("after it acknowledged")
                if self.left[:1] in (["as it leaves the consumer"], ["after it left the consumer"]):
                    break
            self.at("as it leaves the consumer")
        self.at("after it left the consumer")


async def test_a_worker_that_raises_is_started_again_wherever_it_raises(embed: Embed, directory: Path) -> None:
    """Every record reaches both stages at least once, and each restart is counted."""
    failing = Failing()
    queues = KEPT | {"second": QueueOptions()}
    async with embed(directory, queues=queues, workers=[failing], max_restarts=len(PLACES)) as log:
        for number in range(40):
            await log.append("q", b"%d," % number)
        await until(lambda: log.queue_summary("q").records == 0 and not failing.left)
        assert log.workers.restarts == len(PLACES)
        assert log.workers.by_state() == {"running": 1, "restarting": 0, "failed": 0, "ended": 0}
        second = b"".join(record.payload for record in log.range("second"))
    assert {b"%d," % number for number in range(40)} == set(failing.first_stage)
    assert set(range(40)) == {int(found) for found in second.split(b",") if found}


async def test_a_worker_whose_future_was_cancelled_is_started_again(embed: Embed, directory: Path) -> None:
    """What it waited for was cancelled, not the worker: that is a failure like any other."""
    first = True

    async def work(log: MultiRecordLog) -> None:
        nonlocal first
        async with log.consumer("q", "c") as consumer:
            async for batch in consumer.batches():
                if first:
                    first = False
                    other = asyncio.get_running_loop().create_future()
                    other.cancel()
                    await other
                await consumer.acknowledge(batch)

    async with embed(directory, queues=KEPT, workers=[work]) as log:
        await log.append("q", b"a record")
        await until(lambda: log.queue_summary("q").records == 0)
        assert log.workers.restarts == 1
        assert log.workers.by_state() == {"running": 1, "restarting": 0, "failed": 0, "ended": 0}


async def test_a_worker_that_others_cancel_is_missed(
    embed: Embed, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It obeys, but the gauge and the log say that it does not run any more."""
    found: list[asyncio.Task[Any]] = []

    async def work(log: MultiRecordLog) -> None:
        task = asyncio.current_task()
        assert task is not None
        found.append(task)
        await asyncio.Event().wait()

    async with embed(directory, queues=KEPT, workers=[work]) as log:
        await until(lambda: bool(found))
        found[0].cancel()
        await asyncio.wait(found)
        assert found[0].cancelled()
        assert log.workers.by_state() == {"running": 0, "restarting": 0, "failed": 1, "ended": 0}
    assert "work was cancelled and does not run any more" in caplog.text


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        (until, "not <function until"),
        ("until", "not 'until'"),
        ([None], "not one with None"),
        ([asyncio.sleep(0)], "pass sleep itself, without a call"),
    ],
)
def test_workers_that_cannot_be_started_are_refused_at_once(workers: Any, sentence: str, directory: Path) -> None:
    """Not after the log was opened and ten restarts failed."""
    for embed in (
        lambda: lifespan(directory, workers=workers),
        lambda: setup(web.Application(), directory, workers=workers),
    ):
        with pytest.raises(TypeError, match=f"coroutine functions that take the log, such as .*{sentence}"):
            embed()


async def test_a_worker_that_is_no_coroutine_function_says_so(
    embed: Embed, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A plain function is called before anybody can see that it returns no coroutine."""
    options: dict[str, Any] = {"workers": [lambda log: None], "max_restarts": 0, "on_worker_failure": "degrade"}
    async with embed(directory, **options) as log:
        await until(lambda: log.workers.failed == 1)
    assert "it returned None instead of a coroutine: define it with `async def`" in caplog.text


async def test_a_worker_that_fails_too_often_leaves_the_rest_running(embed: Embed, directory: Path) -> None:
    """With "degrade" the application goes on, and the gauge says that a worker is missing."""
    calls = 0

    async def fail(log: MultiRecordLog) -> None:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError

    async with embed(directory, workers=[fail], max_restarts=3, on_worker_failure="degrade", queues=["q"]) as log:
        await until(lambda: log.workers.failed == 1)
        assert (calls, log.workers.restarts) == (4, 3)
        assert await log.append("q", b"") == 0


async def test_failures_long_ago_are_not_counted(embed: Embed, directory: Path) -> None:
    """A worker may fail once a day for ever: only failures within `restart_seconds` count."""
    calls = 0

    async def fail_often(log: MultiRecordLog) -> None:
        nonlocal calls
        calls += 1
        if calls <= 50:
            raise ZeroDivisionError

    async with embed(directory, workers=[fail_often], max_restarts=1, restart_seconds=0) as log:
        await until(lambda: log.workers.ended == 1)
        assert log.workers.restarts == 50


async def test_a_worker_finishes_its_batch_and_gets_no_other(embed: Embed, directory: Path) -> None:
    """At the end it may still append and acknowledge; what waits is delivered after the next start, not now."""
    has_batch, is_ending = asyncio.Event(), asyncio.Event()
    taken: list[bytes] = []

    async def work(log: MultiRecordLog) -> None:
        async with log.consumer("q", "c") as consumer:
            async for batch in consumer.batches(max_records=3, max_wait=0):
                taken.extend(batch.payloads())
                has_batch.set()
                await is_ending.wait()
                await log.append("second", b"%d" % len(batch))
                await consumer.acknowledge(batch)

    with pytest.MonkeyPatch.context() as patch:

        def end(inspection: Inspection) -> None:
            end_readers(inspection)
            is_ending.set()

        patch.setattr(Inspection, "end_readers", end)
        async with embed(directory, queues=KEPT | {"second": QueueOptions()}, workers=[work]) as log:
            for number in range(10):
                await log.append("q", b"%d" % number)
            await has_batch.wait()
            first = len(taken)
    assert first == len(taken) <= 3  # one batch
    async with MultiRecordLog.open(directory) as log:
        assert [record.payload for record in log.range("second")] == [b"%d" % first]
        assert [record.payload for record in log.range("q")] == [b"%d" % number for number in range(first, 10)]


end_readers = Inspection.end_readers


async def test_a_tail_of_a_worker_ends_with_the_application(embed: Embed, directory: Path) -> None:
    """Tails end as consumers do, one that waits and one that has much to read."""
    read: list[int] = []

    async def follow(log: MultiRecordLog) -> None:
        async for record in log.tail("q"):
            read.append(record.position)
            await asyncio.sleep(0)

    async def wait(log: MultiRecordLog) -> None:
        async for _ in log.tail("empty"):
            raise AssertionError

    async with embed(directory, queues=["q", "empty"], workers=[follow, wait]) as log:
        await log.append_records("q", None, [b""] * 10_000)
        await until(lambda: bool(read))
    assert len(read) < 10_000
    assert log.workers.by_state() == {"running": 0, "restarting": 0, "failed": 0, "ended": 2}
    assert log.state is LogState.CLOSED


async def test_a_worker_that_waits_for_its_restart_does_not_delay_the_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause ends with the application."""
    monkeypatch.setattr("mrecordlog_async.embedding.FIRST_PAUSE_SECONDS", 1e6)

    async def fail(log: MultiRecordLog) -> None:
        raise ZeroDivisionError

    async with in_aiohttp(directory, workers=[fail]) as log:
        await until(lambda: log.workers.restarting == 1)
    assert log.workers.by_state() == {"running": 0, "restarting": 0, "failed": 0, "ended": 1}


async def test_a_worker_that_fails_at_the_end_does_not_end_the_process(embed: Embed, directory: Path) -> None:
    """The application ends anyway: its exit status is its own."""

    async def fail(log: MultiRecordLog) -> None:
        async for _ in log.tail("q"):
            pass
        raise ZeroDivisionError

    async with embed(directory, queues=["q"], workers=[fail], max_restarts=0) as log:
        await until(lambda: log.workers.running == 1)
    assert (log.workers.failed, log.state) == (1, LogState.CLOSED)


async def test_a_worker_that_does_not_end_is_cancelled(
    embed: Embed, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The application still ends, and its log is closed cleanly."""

    async def hang(log: MultiRecordLog) -> None:
        await asyncio.Event().wait()

    async with embed(directory, workers=[hang], worker_seconds=0) as log:
        pass
    assert log.state is LogState.CLOSED
    assert re.search(r"the worker \S*hang did not end within 0 s: it is cancelled", caplog.text)


async def test_a_worker_is_cancelled_if_the_end_of_its_application_is(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not go on with a log that is closed."""
    begun, ending, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hang(log: MultiRecordLog) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def run() -> None:
        async with in_fastapi(directory, workers=[hang]) as log:
            logs.append(log)
            await begun.wait()

    monkeypatch.setattr(Inspection, "end_readers", lambda self: ending.set())
    logs: list[MultiRecordLog] = []
    task = asyncio.create_task(run())
    await ending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert logs[0].state is LogState.CLOSED


async def test_metrics_and_readiness_say_that_a_worker_is_missing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them, nothing but a line in the log would say so."""
    monkeypatch.setattr("mrecordlog_async.embedding.FIRST_PAUSE_SECONDS", 0.0)
    may_fail, waits = asyncio.Event(), asyncio.Event()

    async def wait(log: MultiRecordLog) -> None:
        await waits.wait()

    async def end(log: MultiRecordLog) -> None:
        pass

    async def fail(log: MultiRecordLog) -> None:
        await may_fail.wait()
        raise ZeroDivisionError

    workers = [wait, end, fail]
    app = FastAPI(lifespan=lifespan(directory, workers=workers, max_restarts=1, on_worker_failure="degrade"))
    mount(app, "/wal", exposed=True)
    async with app.router.lifespan_context(app):
        await until(lambda: log_of(app).workers.ended == 1)
        assert await gauges(app) == {"running": 2, "restarting": 0, "failed": 0, "ended": 1, "restarts": 0}
        assert await ready(app) == (200, None)
        may_fail.set()
        await until(lambda: log_of(app).workers.failed == 1)
        assert await gauges(app) == {"running": 1, "restarting": 0, "failed": 1, "ended": 1, "restarts": 1}
        assert await ready(app) == (503, "workers of the application that failed and do not run any more: 1")
        waits.set()


async def gauges(app: FastAPI) -> dict[str, int]:
    """Return the gauge of the workers, by state, and the counter of restarts."""
    _, body = await call_asgi(app, "/wal/metrics", {}, headers=[(b"host", b"127.0.0.1")])
    found = re.findall(r'^mrecordlog_worker(?:s{state="(\w+)"}|_(restarts)_total) (\S+)$', body.decode(), re.MULTILINE)
    return {state or restarts: int(float(value)) for state, restarts, value in found}


async def ready(app: FastAPI) -> tuple[int, str | None]:
    """Return the status and the cause of the readiness check."""
    status, body = await call_asgi(app, "/wal/readyz", {}, headers=[(b"host", b"127.0.0.1")])
    found = re.search(rb'"cause":"([^"]*)"', body)
    return status, found and found[1].decode()


PROGRAM = """
from {embed} import {name}
from mrecordlog_async import QueueOptions

async def work(log):
    async with log.consumer("q", "c") as consumer:
        async for batch in consumer.batches():
            raise ConnectionResetError("the other side is gone")

async def feed(log):
    await log.append("q", b"one")

options = dict(queues={{"q": QueueOptions(keep="until_acknowledged")}}, workers=[work, feed], max_restarts=1)
"""
FASTAPI = """
from fastapi import FastAPI
app = FastAPI(lifespan=lifespan("wal", **options))
"""
AIOHTTP = """
from aiohttp import web
app = web.Application()
setup(app, "wal", **options)
web.run_app(app, port=0)
"""


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (
            PROGRAM.format(embed="mrecordlog_async.fastapi", name="lifespan") + FASTAPI,
            ["-m", "uvicorn", "app:app", "--port", "0"],
        ),
        (PROGRAM.format(embed="mrecordlog_async.aiohttp", name="setup") + AIOHTTP, ["app.py"]),
    ],
    ids=["uvicorn", "aiohttp"],
)
async def test_a_process_whose_worker_fails_too_often_ends_with_status_1(
    tmp_path: Path, program: str, command: list[str]
) -> None:
    """So systemd or Kubernetes starts it again. The log is closed cleanly, and the record is still there."""
    (tmp_path / "app.py").write_text(program)
    ended = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1, ended.stderr
    sentence = "the worker work failed 2 times within 300 s (ConnectionResetError: the other side is gone)"
    assert f"{sentence}; the process ends, to be started again" in ended.stderr
    async with MultiRecordLog.open(tmp_path / "wal", create=False) as log:
        assert log.recovery_report.last_end.value == "closed"
        assert [record.payload for record in log.range("q")] == [b"one"]


def test_options_that_there_are_not_name_the_nearest() -> None:
    """A misspelt option is refused when the application is built, not when it starts."""
    with pytest.raises(TypeError, match=r"there is no option 'max_restart'; did you mean 'max_restarts'\?"):
        lifespan("wal", max_restart=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"there is no option 'queue'; did you mean 'queues'\?"):
        lifespan("wal", queue=["q"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"there is no option 'prefx'; did you mean 'prefix'\?"):
        setup(web.Application(), "wal", prefx="/wal")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"there is no option 'prefix'$"):
        lifespan("wal", prefix="/wal")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"there is no option 'colour'$"):
        setup(web.Application(), "wal", colour=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_restarts": -1}, ValueError),
        ({"max_restarts": 1.5}, TypeError),
        ({"restart_seconds": "1"}, TypeError),
        ({"worker_seconds": float("nan")}, ValueError),
        ({"on_worker_failure": "ignore"}, ValueError),
        ({"lock_seconds": float("nan")}, ValueError),
        ({"lock_seconds": True}, TypeError),
    ],
)
def test_options_of_workers_are_checked(options: dict[str, Any], error: type[Exception]) -> None:
    """A wrong value is refused before anything is opened, and the error names the option."""
    with pytest.raises(error, match=next(iter(options))):
        check_options(options)


def test_the_defaults_are_those_that_the_options_document() -> None:
    """The docstring of `EmbedOptions` names them."""
    assert check_options({}) == Supervision(10, 300.0, "exit", 20.0)
