"""A service in a process of its own, and a client of it: threads of a test block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mrecordlog_async.client import BlockingRecordLogClient
from tests.serving import Process


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Process(tmp_path_factory.mktemp("service") / "wal") as service:
        yield service.address


@pytest.fixture
def client(url: str) -> Iterator[BlockingRecordLogClient]:
    """A blocking client of an empty queue, `q`."""
    with BlockingRecordLogClient(url) as client:
        for queue in client.list_queues():
            client.delete_queue(queue)
        client.create_queue("q")
        yield client
