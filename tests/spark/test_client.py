"""The blocking client against the real service."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from mrecordlog_async.protocol.bulk_schemas import PlanRequest, PlanStart
from mrecordlog_async.spark.positions.partitions import Partition, Range
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.fetch import requests_for
from mrecordlog_async.spark.services.responses import ListingPage
from tests.spark.canned import client_of
from tests.spark.services import ThreadedService, ask, numbered


def test_listing_and_plan(service: ThreadedService) -> None:
    """A listing has every queue; a plan says how far the limits reach."""
    service.append("q", numbered("q", 0, 100))
    with client_of(service.url) as client:
        (found,) = client.queues()
        assert (found.queue, found.first_position, found.next_position, found.records) == ("q", 0, 100, 100)
        assert client.queues() == [found]
        assert client.queue("q") == found
        (plan,) = client.plan([PlanStart("q", 10, found.id)], PlanRequest(max_records=50, piece_records=20))
        assert (plan.status, plan.start, plan.stop, plan.records) == ("ok", 10, 60, 50)
        assert (plan.pieces[0].start, plan.pieces[-1].stop) == (10, 60)
        assert [piece.records for piece in plan.pieces] == [20, 20, 10]


def test_a_long_listing_comes_in_pages(service: ThreadedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages are joined if the log was not reopened in between; an unchanged listing costs one request."""
    monkeypatch.setattr("mrecordlog_async.spark.services.client.PAGE_QUEUES", 3)
    names = [f"a/b ü {index}" for index in range(10)]
    for name in names:
        service.append(name, [b"x"])
    with client_of(service.url) as client:
        listing = client.listing()
        assert list(listing.queues) == sorted(names)
        assert len(listing.opened or {}) == 10
        assert client.listing() is listing
        page, reopened = client._page, list[str]()

        def reopen(after: str | None, etag: str = "", since: str = "") -> object:
            if after is not None and not reopened:
                reopened.append(after)
                service.stop()
                service.start()
            return page(after, etag, since)

        service.append("one more", [b"x"])
        monkeypatch.setattr(client, "_page", reopen)
        again = client.listing()
        assert len(again.queues) == 11 and again.opening != listing.opening
        assert set((again.opened or {}).values()) == {1}


def test_fetch_and_truncate(service: ThreadedService) -> None:
    """Records are returned as runs; a truncate returns an outcome for each queue."""
    service.append("a/b ü", numbered("q", 0, 10))
    with client_of(service.url) as client:
        queue_id = client.queue("a/b ü").id
        partition = Partition("s", (Range("a/b ü", queue_id, 2, 5, 3, 9),))
        runs = [block.run() for block in client.fetch(partition)]
        assert [record for run in runs for record in run.records()] == [(at, f"q:{at}".encode()) for at in (2, 3, 4)]
        (block,) = client.fetch(partition, payload=False)
        assert (block.queue, block.first_position, block.record_count, len(block.payload)) == ("a/b ü", 2, 3, 0)
        answers = client.truncate({"a/b ü": [queue_id, 4], "gone": [1, 4]})
        assert [(answer.status, answer.dropped) for answer in answers] == [("ok", 5), ("missing", 0)]
        with pytest.raises(ServiceRefusedError) as refused:
            list(client.fetch(partition))
        assert (refused.value.status, refused.value.code) == (410, "truncated")


def test_many_queues_are_named_in_many_requests(service: ThreadedService) -> None:
    """No request names more than a thousand queues."""
    wanted = {f"q{index}": [1, 0] for index in range(2_500)}
    with client_of(service.url) as client:
        assert [each.status for each in client.truncate(wanted)] == ["missing"] * 2_500
        assert len(client.plan([PlanStart(queue, 0, 1) for queue in wanted])) == 2_500
    ranges = [Range(f"q{index}", index, 0, 1, 1, 1) for index in range(2_500)]
    assert [len(part) for part in requests_for(ranges)] == [1_000, 1_000, 500]


def test_a_listing_is_kept_up_to_date_with_what_changed(service: ThreadedService) -> None:
    """A client that lists again receives only the changes; its listing is that of a client that has just begun."""
    for name in ("b", "d", "e"):
        service.append(name, [b"x"])
    with client_of(service.url) as client:
        client.listing()
        page, pages = client._page, list[ListingPage | None]()

        def noted(after: str | None, etag: str = "", since: str = "") -> ListingPage | None:
            pages.append(page(after, etag, since))
            return pages[-1]

        client._page = noted  # type: ignore[method-assign]
        service.append("b", [b"y"])
        service.delete("d")
        service.append("c", [b"new"])
        service.delete("e")
        service.append("e", [b"recreated", b"z"])
        listing = client.listing()
        (sent,) = pages
        assert sent is not None and list(sent.listing.queues) == ["b", "c", "e"] and list(sent.deleted) == ["d"]
        assert list(listing.queues) == ["b", "c", "e"]
        with client_of(service.url) as fresh:
            whole = fresh.listing()
        assert listing == whole
        service.stop()
        service.start()
        again = client.listing()
        assert pages[-1] is not None and pages[-1].since is None
        assert again.opening != listing.opening and set((again.opened or {}).values()) == {1, 2}


def test_changes_are_requested_only_of_a_list_on_one_page(
    service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later pages are newer than the ETag of the first one: what was deleted since would not be named."""
    service.append("a", [b"x"])
    service.append("b", [b"x"])
    with client_of(service.url) as client:
        with monkeypatch.context() as patch:
            patch.setattr("mrecordlog_async.spark.services.client.PAGE_QUEUES", 1)
            page = client._page

            def change(after: str | None, etag: str = "", since: str = "") -> ListingPage | None:
                if after == "a":
                    ask(f"{service.url}/v1/queues?changed_since=")
                    service.append("short-lived", [b"x"])
                return page(after, etag, since)

            patch.setattr(client, "_page", change)
            assert list(client.listing().queues) == ["a", "b", "short-lived"]
        service.delete("short-lived")
        assert list(client.listing().queues) == ["a", "b"]


def test_a_list_from_several_logs_in_turn_ends(service: ThreadedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a load balancer each page may come from another log: the client gives up, and says why."""
    monkeypatch.setattr("mrecordlog_async.spark.services.client.PAGE_QUEUES", 1)
    service.append("a", [b"x"])
    service.append("b", [b"x"])
    with client_of(service.url) as client:
        page, openings = client._page, count()

        def balanced(after: str | None, etag: str = "", since: str = "") -> ListingPage | None:
            found = page(after, etag, since)
            return found and found._replace(listing=replace(found.listing, opening=str(next(openings))))

        monkeypatch.setattr(client, "_page", balanced)
        with pytest.raises(ServerDownError, match="if the address is a load balancer, name that of each service"):
            client.listing()
