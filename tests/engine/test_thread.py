"""The log's thread: jobs in order, results on the loop, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mrecordlog_async import LogClosedError
from mrecordlog_async.engine.commit.thread import LogThread, ThreadProgress


def done_by(worker: LogThread, work: Callable[..., Any], *arguments: object) -> asyncio.Future[Any]:
    """Hand *work* over; return the future of its result."""
    return asyncio.wrap_future(worker.submit(work, *arguments))


async def test_results_come_back_in_the_order_of_the_jobs() -> None:
    """Jobs run one after the other, and their results reach the loop in that order; errors reach the caller."""
    worker = LogThread(asyncio.get_running_loop())
    told: list[object] = []
    for number in range(100):
        worker.hand_over(lambda result, error: told.append((result, error)), lambda n: n * n, number)

    def fail() -> None:
        raise OSError(5, "failed")

    with pytest.raises(OSError, match="failed"):
        await done_by(worker, fail)
    assert told == [(number * number, None) for number in range(100)]
    worker.shutdown(wait=False)


async def test_job_that_cannot_begin_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory for what the thread notes of a job, its caller gets the error, and the thread continues."""
    worker, done = LogThread(asyncio.get_running_loop()), list[str]()

    def begin(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(ThreadProgress, "begin", begin)
        with pytest.raises(MemoryError):
            await asyncio.wait_for(done_by(worker, done.append, "refused"), 20)
    await asyncio.wait_for(done_by(worker, done.append, "done"), 20)
    assert done == ["done"]
    worker.shutdown(wait=False)


async def test_jobs_before_the_end_are_done() -> None:
    """Shutting down leaves no job undone and no result untold."""
    worker = LogThread(asyncio.get_running_loop())
    results = [done_by(worker, lambda n: n * n, number) for number in range(10)]
    worker.shutdown(wait=False)
    assert await asyncio.gather(*results) == [number * number for number in range(10)]


async def test_jobs_after_the_end_fail() -> None:
    """Nobody waits for ever for what nobody does; the end itself comes once, however often it is asked for."""
    worker, done = LogThread(asyncio.get_running_loop()), list[str]()
    before = done_by(worker, done.append, "before")
    ended, is_first = worker.end(lambda: done.append("last"))
    assert is_first
    late = [done_by(worker, done.append, "late") for _ in range(3)]
    assert worker.end(lambda: done.append("again")) == (ended, False)
    await asyncio.wrap_future(ended)
    late.append(done_by(worker, done.append, "later"))
    await before
    for each in late:
        with pytest.raises(LogClosedError, match="released"):
            await each
    assert done == ["before", "last"]


class Crowded:
    """A queue of jobs into which another thread puts one after each."""

    def __init__(self, jobs: Any, late: object) -> None:
        self._jobs, self._late = jobs, late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    def put(self, job: object) -> None:
        self._jobs.put(job)
        self._jobs.put(self._late)


async def test_no_job_comes_after_the_last_one() -> None:
    """The last job closes the files: one that another thread submits at the same moment must not write to them."""
    worker, done = LogThread(asyncio.get_running_loop()), list[str]()
    done_by(worker, done.append, "before")
    told: list[object] = []
    tell = lambda result, error: told.append(error)  # noqa: E731
    worker._jobs = Crowded(worker._jobs, (done.append, ("late",), tell))
    ended, _ = worker.end(lambda: done.append("last"))
    await asyncio.wrap_future(ended)
    await asyncio.to_thread(worker._thread.join)
    assert [type(error) for error in told] == [LogClosedError]
    assert done == ["before", "last"]


def test_loop_that_ended_does_not_stop_the_thread() -> None:
    """Jobs of a loop that is closed are still done: they release the directory."""

    async def begin() -> LogThread:
        return LogThread(asyncio.get_running_loop())

    worker = asyncio.run(begin())
    worker.hand_over(lambda result, error: None, lambda: 2)
    assert worker.submit(lambda: 3).result(60) == 3
    worker.shutdown()
