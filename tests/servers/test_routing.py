"""Keys are spread evenly, few of them move, and a key stays with its substitute."""

from __future__ import annotations

from collections import Counter

from mrecordlog_async.servers.routing import SLOTS, STAY_SECONDS, Routing, slot_of

LOGS = ["a" * 32, "b" * 32, "c" * 32]


def routing(*logs: str) -> Routing:
    found = Routing()
    found.use(logs)
    return found


def test_homes_are_spread_and_only_a_lost_servers_keys_move() -> None:
    """Each of three logs is the home of a third of the slots; without one, the others keep theirs."""
    three, two = routing(*LOGS), routing(*LOGS[:2])
    slots = range(0, SLOTS, 7)
    homes = Counter(three.order(slot, 0.0)[0] for slot in slots)
    assert all(abs(count / len(slots) - 1 / 3) < 0.02 for count in homes.values())
    for slot in slots:
        home, second = three.order(slot, 0.0)[:2]
        assert two.order(slot, 0.0)[0] == (second if home == LOGS[2] else home)


def test_a_key_is_the_same_in_every_process() -> None:
    """Producers of one fleet agree without talking to each other: nothing depends on a seed."""
    assert (slot_of("user 7"), slot_of(b"user 7")) == (slot_of("user 7"), slot_of("user 7"))
    assert [slot_of(f"user {number}") for number in range(3)] == [3377, 5913, 8242]
    assert routing(*LOGS).order(1, 0.0) == routing(*reversed(LOGS)).order(1, 0.0)


def test_a_slot_stays_with_its_substitute_for_a_while() -> None:
    """For 30 s after the first record went there, even if its home is back; then it goes home."""
    found = routing(*LOGS)
    home, second, third = found.order(5, 0.0)
    found.stored(5, second, 100.0)
    found.stored(5, second, 120.0)  # what follows does not extend it
    assert found.order(5, 100.0 + STAY_SECONDS - 0.1) == (second, home, third)
    assert found.order(5, 100.0 + STAY_SECONDS) == (home, second, third)
    assert found.order(6, 101.0)[0] == routing(*LOGS).order(6, 0.0)[0]  # other slots are not concerned


def test_a_slot_goes_home_as_soon_as_it_may() -> None:
    """A home that is away for longer than 30 s gets its next record: what went elsewhere meanwhile renews nothing."""
    found = routing(*LOGS)
    home, second, _ = found.order(5, 0.0)
    found.stored(5, second, 100.0)
    assert found.order(5, 100.0 + STAY_SECONDS)[0] == home  # which is away
    found.stored(5, second, 100.0 + STAY_SECONDS)
    assert found.order(5, 101.5 + STAY_SECONDS)[0] == home
    found.stored(5, home, 102.0 + STAY_SECONDS)
    found.stored(5, second, 110.0 + STAY_SECONDS)  # away again: another 30 s
    assert found.order(5, 111.0 + STAY_SECONDS)[0] == second


def test_a_substitute_that_fails_is_replaced() -> None:
    """By another one, for another 30 s; or by the home, which needs no substitute."""
    found = routing(*LOGS)
    home, second, third = found.order(5, 0.0)
    found.stored(5, second, 0.0)
    found.stored(5, third, 20.0)
    assert found.order(5, 20.0 + STAY_SECONDS - 0.1)[0] == third
    found.stored(5, home, 21.0)
    assert found.order(5, 21.0)[0] == home
    found.stored(5, second, 22.0)
    found.use([home, third])  # it was forgotten
    assert found.order(5, 23.0) == (home, third)
