"""Frameworks and test doubles treat the appends, plain functions that return coroutines, as coroutine functions."""

from __future__ import annotations

import asyncio
import inspect
import sys
from pathlib import Path
from unittest.mock import AsyncMock, create_autospec

import pytest
from fastapi import BackgroundTasks, FastAPI

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.client import Producer, RecordLogClient
from mrecordlog_async.fastapi import Log, lifespan
from tests.asgi import call_asgi

APPENDS = [
    (kind, name)
    for kind in (MultiRecordLog, RecordLogClient, Producer)
    for name in ("append", "append_record", "append_records")
    if hasattr(kind, name)
]


@pytest.mark.parametrize(("kind", "name"), APPENDS)
def test_appends_are_coroutine_functions(kind: type, name: str) -> None:
    """Code that asks before it calls awaits the result, as it does for the other changes."""
    # asyncio's question is deprecated since Python 3.14, and inspect's knows no marks before 3.12.
    is_coroutine_function = (inspect if sys.version_info >= (3, 12) else asyncio).iscoroutinefunction
    assert is_coroutine_function(getattr(kind, name))


async def test_background_tasks_of_fastapi_store_their_records(directory: Path) -> None:
    """A response may be sent first and its record stored afterwards; the record is not dropped in a thread."""
    app = FastAPI(lifespan=lifespan(directory, queues=["q"]))

    @app.post("/later")
    async def later(tasks: BackgroundTasks, log: Log) -> None:
        tasks.add_task(log.append_record, "q", None, b"one")
        tasks.add_task(log.append_records, "q", None, [b"two", b"three"])
        tasks.add_task(log.append, "q", b"four")

    async with app.router.lifespan_context(app) as yielded:
        state = dict(yielded or {})
        assert (await call_asgi(app, "/later", state, "POST"))[0] == 200
        log = state["mrecordlog"]
        assert [record.payload for record in log.range("q")] == [b"one", b"two", b"three", b"four"]


async def test_a_mock_with_the_spec_of_the_log_can_be_awaited() -> None:
    """Unit tests of applications replace the log by a mock of its class."""
    for mock in (AsyncMock(spec=MultiRecordLog), create_autospec(MultiRecordLog, instance=True)):
        mock.append_record.return_value = 7
        assert await mock.append_record("q", None, b"a") == 7
        mock.append_record.assert_awaited_once_with("q", None, b"a")
        mock.append.return_value = 8
        assert await mock.append("q", b"a") == 8
