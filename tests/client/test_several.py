"""The example for several services: a key chooses one, and the next one is used only if nothing was sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mrecordlog_async.client import OutcomeUnknownError, ServiceUnreachableError
from tests.client.hostile import Fault, appends, hostile
from tests.docs.blocks import ROOT
from tests.programs import load_program
from tests.served import Served, serving
from tests.serving import free_port

KEYS = [f"user {number}" for number in range(100)]


class Running(NamedTuple):
    """The example's services: two that run, and one that is down."""

    services: Any
    up: dict[str, Served]
    down: str


def recipe() -> Any:
    """Return the class of the example."""
    return load_program(ROOT / "examples" / "several_services.py").Services


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path / "a") as a, serving(tmp_path / "b") as b:
        down = f"http://127.0.0.1:{free_port()}"
        services = recipe()([a.url, down, b.url])
        yield Running(services, {a.url: a, b.url: b}, down)
        await services.close()


async def test_a_record_is_stored_once_in_the_first_service_that_is_up(running: Running) -> None:
    """Every key has its service while that is up; the keys of the one that is down are divided among the others."""
    firsts = {key: running.services.ranked(key)[0] for key in KEYS}
    assert set(firsts.values()) == {*running.up, running.down}
    stored: dict[bytes, str] = {}
    for key, first in firsts.items():
        url, _ = await running.services.append("clicks", key.encode(), key)
        stored[key.encode()] = url
        assert url == (running.services.ranked(key)[1] if first == running.down else first)
    found = [(record.payload, url) for url, served in running.up.items() for record in served.log.range("clicks")]
    assert sorted(found) == sorted(stored.items())
    assert {stored[key.encode()] for key, first in firsts.items() if first == running.down} == set(running.up)


async def test_a_record_that_may_be_stored_is_not_sent_to_another_service(tmp_path: Path) -> None:
    """The caller gets the error: the record is there once, though its response was lost."""
    async with (
        serving(tmp_path / "a") as a,
        serving(tmp_path / "b") as b,
        hostile(a.port, appends(Fault.LOSE_RESPONSE)) as proxy,
    ):
        services = recipe()([proxy.url, b.url])
        key = next(key for key in KEYS if services.ranked(key)[0] == proxy.url)
        with pytest.raises(OutcomeUnknownError):
            await services.append("clicks", b"one", key)
        await services.close()
        assert [record.payload for record in a.log.range("clicks")] == [b"one"]
        assert not b.log.queue_exists("clicks")


async def test_a_record_that_no_service_takes_is_certainly_not_stored() -> None:
    """The error is that of the last service, and says that nothing was sent."""
    services = recipe()([f"http://127.0.0.1:{free_port()}" for _ in range(2)])
    with pytest.raises(ServiceUnreachableError) as gone:
        await services.append("clicks", b"one", "user 7")
    await services.close()
    assert (gone.value.sent, gone.value.address) == (False, services.ranked("user 7")[1])
