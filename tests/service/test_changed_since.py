"""A list of what changed since an earlier list, merged with that one, is the list."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mrecordlog_async import QueueOptions
from mrecordlog_async.service.reading import earlier_lists
from mrecordlog_async.service.reading.queue_names import Names
from tests.served import Served


class Lister:
    """A client that keeps the queues by name, and requests only what changed."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.tag = ""
        self.queues: dict[str, dict[str, Any]] = {}

    async def list(self) -> dict[str, Any]:
        """Request what changed, note it, and return the response."""
        response = await self._served.call("GET", f"/v1/queues?changed_since={self.tag}")
        found: dict[str, Any] = response.json()
        if found.get("changed_since") is None:
            self.queues = {}
        for name in found.get("deleted", ()):
            del self.queues[name]
        self.queues |= {each["queue"]: each for each in found["queues"]}
        self.tag = response.headers["ETag"].strip('"')
        return found


async def whole(served: Served) -> dict[str, Any]:
    """Return all queues by name."""
    return {each["queue"]: each for each in (await served.call("GET", "/v1/queues")).json()["queues"]}


async def change(served: Served, random: Random) -> None:
    """Change one queue somehow."""
    log, name = served.log, f"q{random.randrange(6)}"
    if not log.queue_exists(name):
        await log.create_queue(name)
        return
    summary = log.queue_summary(name)
    match random.randrange(9):
        case 0:
            await log.delete_queue(name, past_consumers=True)
        case 1:
            await log.truncate(name, max(0, summary.next_position - 1), past_consumers=True)
        case 2:
            await log.truncate(name, summary.first_position, past_consumers=True)
        case 3:
            await log.truncate(name, summary.next_position + random.randrange(3), past_consumers=True)
        case 4 if not summary.sealed:
            await log.seal_queue(name)
        case 5:
            options = QueueOptions(max_records=random.randrange(3, 9), when_full="drop_oldest")
            await log.configure_queue(name, options)
        case 6 if not summary.sealed:
            await log.append_records(name, summary.next_position + random.randrange(4), [b"gap"])
        case 7:
            await log.inspection.attach_consumer(name, "c", create=True)
        case _ if not summary.sealed:
            await log.append_records(name, None, [b"x"] * random.randrange(1, 4))


@pytest.mark.parametrize("seed", range(6))
async def test_every_change_of_a_queue_is_listed(served: Served, seed: int) -> None:
    """Whatever happens to queues, two clients that list at different times have what a new list has."""
    random = Random(seed)
    often, seldom = Lister(served), Lister(served)
    for step in range(60):
        await change(served, random)
        for lister in (often, seldom) if step % 7 == 0 else (often,):
            await lister.list()
            assert lister.queues == await whole(served)


async def test_only_what_changed_is_listed(served: Served) -> None:
    """One of many queues has new records, one is deleted: the list has the one and names the other."""
    for name in ("a", "b", "c"):
        await served.log.create_queue(name)
    lister = Lister(served)
    assert len((await lister.list())["queues"]) == 4
    tag = lister.tag
    await served.log.append_record("b", None, b"x")
    await served.log.delete_queue("c")
    found = await lister.list()
    assert [each["queue"] for each in found["queues"]] == ["b"]
    assert (found["deleted"], found["changed_since"], found["next"]) == (["c"], tag, None)
    assert found["at"] == (await served.call("GET", "/v1/queues")).json()["at"]
    nothing = await lister.list()
    assert (nothing["queues"], nothing["deleted"]) == ([], [])


async def test_a_lost_response_can_be_requested_again(served: Served) -> None:
    """The earlier list is still known when its client, which never saw the later one, requests the same again."""
    lister = Lister(served)
    await lister.list()
    for position in range(3):
        await served.log.append_record("q", None, b"x")
        lost = await served.call("GET", f"/v1/queues?changed_since={lister.tag}")
        assert (lost.json()["changed_since"], lost.json()["queues"][0]["next_position"]) == (lister.tag, position + 1)
    await lister.list()
    assert lister.queues == await whole(served)


async def test_a_list_that_is_not_known_any_more_is_sent_as_a_whole(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service keeps the last few, and none of more queues than it takes fingerprints of in one go."""
    monkeypatch.setattr(earlier_lists, "FINGERPRINTS_KEPT", 4)
    lister, others = Lister(served), [Lister(served) for _ in range(4)]
    await lister.list()
    for other in others:
        await served.log.append_record("q", None, b"x")
        await other.list()
    for tag in (lister.tag, "", "nonsense", '"quoted"'):
        found = (await served.call("GET", f"/v1/queues?changed_since={tag}")).json()
        assert ([each["queue"] for each in found["queues"]], "changed_since" in found) == (["q"], False)
    await lister.list()
    monkeypatch.setattr(earlier_lists, "QUEUES_MAX", 0)
    assert "changed_since" not in await lister.list()


@pytest.mark.parametrize("clients", [1, 8, 30])
async def test_clients_that_list_in_turn_keep_two_lists_each(served: Served, clients: int) -> None:
    """Each receives only what changed, however many there are; a list is forgotten once the next one was received."""
    listers = [Lister(served) for _ in range(clients)]
    for lister in listers:
        await lister.list()
    for _ in range(4):
        for lister in listers:
            await served.log.append_record("q", None, b"x")
            assert "changed_since" in await lister.list()
    assert len(served.service.earlier_lists) <= 2 * clients


async def test_what_changes_while_a_list_is_made_is_in_the_next_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ETag is of the state before: a change in between must not count as known to everyone who has it."""
    lister, late = Lister(served), Lister(served)
    names = Names.sorted

    async def slow(self: Names, log: Any) -> list[str]:
        found = await names(self, log)
        await served.log.append_record("q", None, b"meanwhile")
        return found

    await late.list()
    with monkeypatch.context() as patch:
        patch.setattr(Names, "sorted", slow)
        await lister.list()
    assert lister.tag == late.tag
    await late.list()
    assert late.queues == await whole(served)
    assert late.queues["q"]["records"] == 1


@pytest.mark.parametrize("other", ["prefix=a", "after=a", "order=bytes&limit=1"])
async def test_changes_are_of_all_queues(served: Served, other: str) -> None:
    """Changes of a part of the queues, or in another order, cannot be requested."""
    refused = await served.call("GET", f"/v1/queues?changed_since=&{other}")
    assert (refused.status, refused.json()["code"]) == (400, "parameter")
    assert "changed_since goes with limit only" in refused.json()["detail"]


async def test_changes_of_more_queues_than_the_limit_begin_anew(served: Served) -> None:
    """If all queues do not fit on one page, the first page of all of them is sent, as without `changed_since`."""
    await served.log.create_queue("r")
    lister = Lister(served)
    await lister.list()
    found = (await served.call("GET", f"/v1/queues?changed_since={lister.tag}x&limit=1")).json()
    assert ([each["queue"] for each in found["queues"]], found["next"]) == (["q"], "q")
