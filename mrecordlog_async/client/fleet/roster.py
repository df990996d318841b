"""Which logs there are and where: what probes of addresses have shown, and which of it cannot be.

A log is identified by its id, and an opening of it by a random number that never comes back. So:

1. Two addresses with one id and one opening are one server.
2. One id with another opening is a restart, or a log that moved. If the earlier opening is seen again after that, both
   live at once: two copies of one log, which give the same position to different records. The log is refused.
3. An address whose id changed was given to another log. If it changes twice within `PERIOD_SECONDS`, a load balancer
   answers there: records of one queue would go to any log. The address is refused.

A refusal ends once nothing of the kind was seen for `PERIOD_SECONDS`. Nothing here waits or sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mrecordlog_async.dns_names import shown_url

PERIOD_SECONDS = 60.0
OPENINGS_KEPT = 16


class Place(NamedTuple):
    """A way to a server.

    url: Its URL. address: what to connect to, None for the host of the URL. name: what the user calls it, "" for
    nothing. origin: what the user calls the DNS name that it was found under.
    """

    url: str
    address: str | None = None
    name: str = ""
    origin: str = ""

    def __str__(self) -> str:
        """Return where it is, for messages."""
        return shown_url(self.url) if self.address is None else f"{shown_url(self.url)} ({self.address})"


class Seen(NamedTuple):
    """What a probe of a place has shown. ready: it takes records."""

    log_id: str
    opening: str
    name: str
    ready: bool


class _Address:
    """What was seen at one place."""

    def __init__(self) -> None:
        self.seen: Seen | None = None
        self.responds = False
        self.silent_since: float | None = None
        self.changes: deque[float] = deque(maxlen=2)
        self.refused_until = 0.0

    def see(self, seen: Seen, now: float) -> bool:
        """Note *seen*; return whether the id is another one than before."""
        changed = self.seen is not None and self.seen.log_id != seen.log_id
        self.seen, self.responds, self.silent_since = seen, True, None
        if changed:
            self.changes.append(now)
            if len(self.changes) == 2 and now - self.changes[0] < PERIOD_SECONDS:
                self.refused_until = now + PERIOD_SECONDS
        return changed


class _Log:
    """What was seen of one log: its openings, the newest one last."""

    def __init__(self, opening: str) -> None:
        self.openings = deque([opening], maxlen=OPENINGS_KEPT)
        self.changed_at = 0.0
        self.refused_until = 0.0

    def see(self, opening: str, asked: float, now: float) -> bool:
        """Note the opening that a probe, sent at *asked*, has shown; return whether it is another one than before."""
        if self.openings[-1] == opening:
            return False
        if opening not in self.openings:
            self.openings.append(opening)
            self.changed_at = now
        elif asked > self.changed_at:  # otherwise the response was under way while the log was opened again
            self.openings.remove(opening)
            self.openings.append(opening)
            self.changed_at, self.refused_until = now, now + PERIOD_SECONDS
        return True


class Roster:
    """The places and logs that are known. Times are those of the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._places: dict[Place, _Address] = {}
        self._logs: dict[str, _Log] = {}

    def note_listed(self, places: Iterable[Place], now: float) -> None:
        """Note the *places* that the user and the resolver name at present.

        One that is no longer named is kept as long as it responds: a resolver may leave out a server that is not ready,
        and its records can still be read.
        """
        listed = dict.fromkeys(places)
        for place in listed:
            self._places.setdefault(place, _Address())
        for place, address in list(self._places.items()):
            silent = address.silent_since is not None and now - address.silent_since >= PERIOD_SECONDS
            if place not in listed and (silent or address.seen is None):
                del self._places[place]

    def places(self) -> list[Place]:
        """Return the places to probe."""
        return list(self._places)

    def is_new(self, place: Place) -> bool:
        """Return whether nothing has responded at *place* yet."""
        return self._places[place].seen is None

    def see(self, place: Place, seen: Seen, asked: float, now: float) -> bool:
        """Note what a probe, sent at *asked*, has shown; return whether it leaves a doubt that more probes settle."""
        moved = self._places[place].see(seen, now)
        log = self._logs.setdefault(seen.log_id, _Log(seen.opening))
        return log.see(seen.opening, asked, now) or moved

    def miss(self, place: Place, now: float) -> None:
        """Note that *place* did not respond."""
        address = self._places[place]
        address.responds = False
        if address.silent_since is None:
            address.silent_since = now

    def logs(self) -> Iterator[tuple[str, Place, Seen]]:
        """Yield each log that responds at a place, with the newest of its openings."""
        found: set[str] = set()
        for place, address in self._places.items():
            seen = address.seen
            if seen is None or not address.responds or seen.log_id in found:
                continue
            if seen.opening == self._logs[seen.log_id].openings[-1]:
                found.add(seen.log_id)
                yield seen.log_id, place, seen

    def why_refused(self, log_id: str, place: Place, now: float) -> str | None:
        """Return why a log must not be used at *place*; None if it may."""
        if now < self._places[place].refused_until:
            return f"{place} leads to changing logs, like a load balancer: name its servers one by one"
        if now < self._logs[log_id].refused_until:
            at = ", ".join(str(each) for each, one in self._places.items() if one.seen and one.seen.log_id == log_id)
            return (
                f"two copies of the log {log_id} run at once ({at}): both give the same positions to different "
                "records. Stop the copy; what was stored in it since is in no other log"
            )
        return None

    def refusals(self, now: float) -> list[str]:
        """Return why logs or places are refused at present."""
        return sorted({why for log_id, place, _ in self.logs() if (why := self.why_refused(log_id, place, now))})
