"""What probes of addresses say about logs: moves and restarts are followed, copies and load balancers refused."""

from __future__ import annotations

import pytest

from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.servers.roster import PERIOD_SECONDS, Roster, Seen
from tests.servers.cases import CASES, Case, Ticking

A, B = Endpoint("http://a:80"), Endpoint("http://b:80")


class Told:
    """A roster at a time that the test sets."""

    def __init__(self) -> None:
        self.roster, self.now = Roster(), 0.0
        self.roster.note_listed([A, B], 0.0)

    def see(self, place: Endpoint, log_id: str, opening: str, *, asked: float | None = None) -> None:
        self.now += 1.0
        seen = Seen(log_id, opening)
        self.roster.see(place, seen, self.now - 0.1 if asked is None else asked, self.now)

    def miss(self, place: Endpoint) -> None:
        self.roster.miss(place, self.now)

    @property
    def logs(self) -> dict[str, Endpoint]:
        return {log_id: place for log_id, place, _ in self.roster.logs()}

    @property
    def refusals(self) -> list[str]:
        logs, now = self.roster.logs(), self.now
        return sorted({why for log_id, place, _ in logs if (why := self.roster.why_refused(log_id, place, now))})


def test_two_addresses_with_one_id_and_one_opening_are_one_server() -> None:
    """A name and an address of the same machine count once."""
    told = Told()
    told.see(A, "x", "1")
    told.see(B, "x", "1")
    assert (told.logs, told.refusals) == ({"x": A}, [])
    told.miss(A)
    assert told.logs == {"x": B}


def test_a_restart_and_a_move_are_followed() -> None:
    """A new opening replaces the old one; an address that still shows the old one is left until it is probed again."""
    told = Told()
    told.see(A, "x", "1")
    told.see(A, "x", "2")
    told.see(B, "x", "3")
    assert (told.logs, told.refusals) == ({"x": B}, [])
    told.miss(A)
    assert (told.logs, told.refusals) == ({"x": B}, [])


def test_two_copies_of_a_log_are_refused_until_one_is_stopped() -> None:
    """The earlier opening comes back after the later one: both are alive."""
    told = Told()
    told.see(A, "x", "1")
    told.see(B, "x", "2")
    assert told.refusals == []
    told.see(A, "x", "1")
    assert "two copies of the log x" in told.refusals[0] and "http://b:80" in told.refusals[0]
    told.miss(B)
    told.now += PERIOD_SECONDS
    told.see(A, "x", "1")
    assert told.refusals == []


def test_a_response_that_was_under_way_during_a_restart_is_no_copy() -> None:
    """It was asked for before the later opening was seen."""
    told = Told()
    told.see(A, "x", "1")
    asked = told.now + 0.5
    told.see(B, "x", "2")
    told.see(A, "x", "1", asked=asked)
    assert (told.logs, told.refusals) == ({"x": B}, [])


def test_an_address_that_was_given_to_another_log_is_followed() -> None:
    """Once is a move; both logs are known where they are."""
    told = Told()
    told.see(A, "x", "1")
    told.see(A, "y", "5")
    told.see(B, "x", "2")
    assert (told.logs, told.refusals) == ({"y": A, "x": B}, [])


def test_an_address_with_changing_ids_is_refused() -> None:
    """Twice within a minute is a load balancer, whether ids come back or not."""
    told = Told()
    for number in range(3):
        told.see(A, "xyz"[number], str(number))
    assert "like a load balancer" in told.refusals[0]
    slow = Told()
    for number in range(3):
        slow.see(A, "xyz"[number], str(number))
        slow.now += PERIOD_SECONDS
    assert slow.refusals == []


def test_an_address_that_is_no_longer_named_is_kept_while_it_responds() -> None:
    """A resolver leaves out servers that are not ready; after a minute of silence the address is dropped."""
    told = Told()
    told.see(A, "x", "1")
    told.roster.note_listed([B], told.now)
    assert told.roster.endpoints() == [A, B]
    told.miss(A)
    told.roster.note_listed([B], told.now + PERIOD_SECONDS)
    assert told.roster.endpoints() == [B]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_the_table_of_cases(case: Case) -> None:
    """Every address is asked twice at a look, as Spark does in doubt."""
    roster, clock = Roster(), Ticking()
    for seconds, shown in case.looks:
        clock.now = max(clock.now, seconds)
        roster.note_listed([Endpoint(name) for _, looked in case.looks for name in looked], clock())
        for endpoint in roster.endpoints() * 2:
            opening = shown.get(endpoint.url)
            if opening is None:
                roster.miss(endpoint, clock())
            else:
                roster.see(endpoint, Seen(opening[:1], opening), clock(), clock())
    now = clock()
    used = [log_id for log_id, endpoint, _ in roster.logs() if roster.why_refused(log_id, endpoint, now) is None]
    assert "".join(sorted(used)) == case.used
