"""A proxy that repeats requests doubles no record of a producer, and no stored record is reported as not stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import pytest

from mrecordlog_async import PositionInPastError, RecordLogError
from mrecordlog_async.client import OutcomeUnknownError, RecordLogClient
from tests.client.hostile import Fault, appends, hostile
from tests.served import Served

REPEATS = [
    pytest.param([Fault.TWICE_FIRST], id="all, first response"),
    pytest.param([Fault.TWICE_SECOND], id="all, second response"),
    pytest.param([Fault.NONE, Fault.TWICE_FIRST], id="half, first response"),
    pytest.param([Fault.NONE, Fault.TWICE_SECOND], id="half, second response"),
]

Outcomes = dict[bytes, int | RecordLogError | None]


async def outcomes_of(store: Callable[[bytes], Awaitable[int | None]], payloads: Iterable[bytes]) -> Outcomes:
    """Append one record after the other; return what each caller got."""
    found: Outcomes = {}
    for payload in payloads:
        try:
            found[payload] = await store(payload)
        except RecordLogError as error:
            found[payload] = error
    return found


def check(outcomes: Outcomes, stored: Iterable[bytes], faults: list[Fault]) -> None:
    """Raise AssertionError if a record was doubled, or a caller got the wrong outcome."""
    counts = Counter(stored)
    assert [payload for payload, count in counts.items() if count > 1] == []
    errors = {payload: error for payload, error in outcomes.items() if isinstance(error, RecordLogError)}
    assert {type(error) for error in errors.values()} <= {OutcomeUnknownError}  # the only one that does not say "no"
    assert all(counts[payload] == 1 for payload in outcomes.keys() - errors.keys())
    assert bool(errors) is (Fault.TWICE_SECOND in faults)


@pytest.mark.parametrize("faults", REPEATS)
async def test_a_producer_never_reports_a_stored_record_as_not_stored(served: Served, faults: list[Fault]) -> None:
    """If only the response to the repeat comes back, the outcome is unknown: it says that the records were there."""
    async with hostile(served.port, appends(*faults)) as proxy, RecordLogClient(proxy.url) as client:
        outcomes: Outcomes = {}
        for number in range(20):  # a producer that has failed sends nothing more, so each has two records
            async with client.producer("q") as producer:
                outcomes |= await outcomes_of(producer.append_record, [b"%d a" % number, b"%d b" % number])
    check(outcomes, [record.payload for record in served.log.range("q")], faults)


async def test_a_repeat_with_nothing_left_to_compare_with_is_unknown(served: Served) -> None:
    """A drain removed the record before the proxy repeated it, and another record came: "not stored" would be wrong."""

    async def drain() -> None:
        await served.log.truncate("q", 0)
        await served.log.append_record("q", None, b"another writer's")

    async with hostile(served.port, appends(Fault.TWICE_SECOND)) as proxy, RecordLogClient(proxy.url) as client:
        proxy.between = drain
        async with client.producer("q") as producer:
            with pytest.raises(OutcomeUnknownError):
                await producer.append_record(b"a")


@pytest.mark.parametrize("faults", REPEATS)
async def test_a_record_with_a_position_is_stored_once(served: Served, faults: list[Fault]) -> None:
    """Another writer takes positions, and its records are told apart from a repeat."""
    async with hostile(served.port, appends(*faults)) as proxy, RecordLogClient(proxy.url) as client:
        for number in range(20):
            position, payload = served.log.next_position("q"), b"%d" % number
            if number % 5 == 0:
                await served.log.append_record("q", None, b"another writer's %d" % number)
                with pytest.raises(PositionInPastError):
                    await client.append_record("q", position, payload)
                position += 1
            await client.append_record("q", position, payload)
    counts = Counter(record.payload for record in served.log.range("q"))
    assert set(counts.values()) == {1}
    assert counts.keys() >= {b"%d" % number for number in range(20)}
