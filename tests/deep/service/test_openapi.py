"""The service against its own OpenAPI document: schemathesis makes requests from it, and checks each response."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.protocol import wire
from mrecordlog_async.service.routes.openapi import document
from tests.serving import Process

schemathesis = pytest.importorskip("schemathesis")

EVENTS = r"/(tail|stats/stream)$"
"""schemathesis takes the schema of an event stream for that of a whole event; here it is that of an event's data."""
FITTING = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
]
"""Others do not fit: a valid request is refused for what the log holds, and a strange `X-Log-Id` before the method."""
REFUSALS = ["400", "404", "409", "412", "413", "415", "429"]


CONFIG = {"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}
schemathesis.serializer.alias(["application/x-ndjson", wire.CONTENT_TYPE], "application/octet-stream")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a log, which opens again after all requests."""
    directory = tmp_path_factory.mktemp("openapi") / "wal"
    with Process(directory) as process:
        yield process.address
        code, said = process.stop()
        assert code == 0, said
    asyncio.run(open_again(directory))


async def open_again(directory: Path) -> None:
    async with MultiRecordLog.open(directory):
        pass


schema = schemathesis.openapi.from_dict(
    msgspec.to_builtins(document()), config=schemathesis.Config.from_dict(CONFIG)
).exclude(path_regex=EVENTS)


@schema.parametrize()
@settings(max_examples=15)
def test_every_response_is_one_that_the_document_describes(case: Any, address: str) -> None:
    """Status, type, headers and body are described; no request makes the service fail, and a wrong one is refused."""
    checks = [getattr(schemathesis.checks, name) for name in FITTING]
    case.call_and_validate(base_url=address, checks=checks)
