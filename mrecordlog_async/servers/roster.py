"""Finds out which logs exist, and where, from probes of addresses, and refuses what cannot be.

A log is identified by its id, and an opening of it by a random number that never comes back. So:

| shown | it is | what follows |
|---|---|---|
| one id and one opening at two addresses | one server with two addresses | it is used once |
| an id in another opening, at any address | a restart, or a log that moved | the log is followed |
| the earlier opening of a log after a later one | live copies of one log | the log is refused for `PERIOD_SECONDS` |
| another id at an address | another log has the address now | both are used, where they are |
| three ids at an address within `PERIOD_SECONDS` | a load balancer | it is refused for `PERIOD_SECONDS` |
| an opening at an address that showed another log since | a load balancer | it is refused for `RETURNED_SECONDS` |

Copies give the same position to different records, and a load balancer sends the records of one queue to any log. The
last row is a proof, however slowly the address changes: the log that came back never stopped. The row before it is no
proof, for a server may be replaced twice within a minute, but it finds a load balancer in front of many logs. A refusal
ends once nothing of its kind was seen for its time: a server that was replaced, or an address that was given back, is
not refused for good. Nothing here waits or sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mrecordlog_async.servers.names import Endpoint

PERIOD_SECONDS = 60.0
RETURNED_SECONDS = 600.0
PROBES_OF_NEW = 3
"""Probes of a new address, over a connection each: a load balancer chooses for each connection."""

KEPT = 16
"""Openings that are remembered, of a log and of an address."""


class Seen(NamedTuple):
    """Result of a probe of an address."""

    log_id: str
    opening: str


class Sighting(NamedTuple):
    """Result of one probe, when it was sent, and when the response was there."""

    seen: Seen
    asked: float
    now: float


class _Address:
    """Observations at one address."""

    def __init__(self) -> None:
        self.seen: Seen | None = None
        self.responds = False
        self.silent_since: float | None = None
        self.refused_until = 0.0
        self._shown = deque[tuple[str, str]](maxlen=KEPT)  # (log, opening), the latest one last
        self._logs = deque[tuple[str, float]](maxlen=3)  # (log, since when), without repeats in a row
        self._changed_at = 0.0

    def see(self, seen: Seen, asked: float, now: float) -> None:
        """Note *seen*."""
        changed = self.seen is not None and self.seen.log_id != seen.log_id
        self.seen, self.responds, self.silent_since = seen, True, None
        if not self._logs or self._logs[-1][0] != seen.log_id:
            self._logs.append((seen.log_id, now))
        if changed and self._has_three(now):
            self.refused_until = max(self.refused_until, now + PERIOD_SECONDS)  # a longer refusal is not cut short
        if asked >= self._changed_at:  # otherwise the response was under way while another log got the address
            if self._has_returned(seen):
                self.refused_until = now + RETURNED_SECONDS
            self._note(seen, now)

    def shown(self) -> list[str]:
        """Return the logs that the address has shown."""
        return list(dict.fromkeys(log_id for log_id, _ in self._shown))

    def _has_three(self, now: float) -> bool:
        """Return whether three logs had the address within the period."""
        # The first of them was there until the second came.
        return len({log_id for log_id, _ in self._logs}) == 3 and now - self._logs[1][1] < PERIOD_SECONDS

    def _has_returned(self, seen: Seen) -> bool:
        """Return whether the address showed this opening before, and another log since."""
        shown, opening = list(self._shown), (seen.log_id, seen.opening)
        # Openings of the same log in between are copies of it, which the log's own openings show.
        return opening in shown and any(log_id != seen.log_id for log_id, _ in shown[shown.index(opening) :])

    def _note(self, seen: Seen, now: float) -> None:
        opening = (seen.log_id, seen.opening)
        if self._shown and self._shown[-1] == opening:
            return
        if opening in self._shown:
            self._shown.remove(opening)
        self._shown.append(opening)
        self._changed_at = now


class _Log:
    """Observations of one log: its openings, the newest one last."""

    def __init__(self, opening: str) -> None:
        self.openings = deque([opening], maxlen=KEPT)
        self.changed_at = 0.0
        self.refused_until = 0.0

    def see(self, opening: str, asked: float, now: float) -> None:
        """Note the opening that a probe, sent at *asked*, has shown."""
        if self.openings[-1] == opening:
            return
        if opening not in self.openings:
            self.openings.append(opening)
            self.changed_at = now
        elif asked > self.changed_at:  # otherwise the response was under way while the log was opened again
            self.openings.remove(opening)
            self.openings.append(opening)
            self.changed_at, self.refused_until = now, now + PERIOD_SECONDS


class Roster:
    """The addresses and logs that are known. Times are those of the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._addresses: dict[Endpoint, _Address] = {}
        self._logs: dict[str, _Log] = {}

    def note_listed(self, endpoints: Iterable[Endpoint], now: float) -> None:
        """Note the *endpoints* that the user and the resolver name at present.

        One that is no longer named is kept as long as it responds: a resolver may leave out a server that is not ready,
        and its records can still be read.
        """
        listed = dict.fromkeys(endpoints)
        for endpoint in listed:
            self._addresses.setdefault(endpoint, _Address())
        for endpoint, address in list(self._addresses.items()):
            silent = address.silent_since is not None and now - address.silent_since >= PERIOD_SECONDS
            if endpoint not in listed and (silent or address.seen is None):
                del self._addresses[endpoint]

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints to probe."""
        return list(self._addresses)

    def showed(self, endpoint: Endpoint, seen: Seen) -> bool:
        """Return whether *endpoint* showed the log and opening of *seen* the last time."""
        before = self._addresses[endpoint].seen
        return before is not None and (before.log_id, before.opening) == (seen.log_id, seen.opening)

    def see(self, endpoint: Endpoint, seen: Seen, asked: float, now: float) -> None:
        """Note what a probe, sent at *asked*, has shown."""
        self._addresses[endpoint].see(seen, asked, now)
        self._logs.setdefault(seen.log_id, _Log(seen.opening)).see(seen.opening, asked, now)

    def miss(self, endpoint: Endpoint, now: float) -> None:
        """Note that *endpoint* did not respond."""
        address = self._addresses[endpoint]
        address.responds = False
        if address.silent_since is None:
            address.silent_since = now

    def logs(self) -> Iterator[tuple[str, Endpoint, Seen]]:
        """Yield each log that responds at an address, with the newest of its openings."""
        found: set[str] = set()
        for endpoint, address in self._addresses.items():
            seen = address.seen
            if seen is None or not address.responds or seen.log_id in found:
                continue
            if seen.opening == self._logs[seen.log_id].openings[-1]:
                found.add(seen.log_id)
                yield seen.log_id, endpoint, seen

    def why_refused(self, log_id: str, endpoint: Endpoint, now: float) -> str | None:
        """Return why a log must not be used at *endpoint*; None if it may."""
        return self.why_balancer(endpoint, now) or self.why_copied(log_id, now)

    def why_balancer(self, endpoint: Endpoint, now: float) -> str | None:
        """Return why *endpoint* is refused, whichever log it shows; None if it is not."""
        address = self._addresses.get(endpoint)
        if address is None or now >= address.refused_until:
            return None
        return (
            f"{endpoint} responds with several logs in turn ({' and '.join(address.shown())}), like a load balancer: "
            "name the address of each service"
        )

    def why_copied(self, log_id: str, now: float) -> str | None:
        """Return why a log is refused at every address; None if it is not."""
        log = self._logs.get(log_id)
        if log is None or now >= log.refused_until:
            return None
        at = ", ".join(str(each) for each, one in self._addresses.items() if one.seen and one.seen.log_id == log_id)
        return (
            f"two copies of the log {log_id} run at once ({at}): both give the same positions to different "
            "records. Stop the copy; what was stored in it since is in no other log"
        )
