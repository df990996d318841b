"""Chooses the server of a key: rendezvous hashing over the ids of the logs, and substitutes for those that fail.

1. A key falls into one of `SLOTS` slots, and each slot ranks the logs: the highest hash of slot and log id is its home.
   A log that comes or goes moves only the keys that it takes, or had.
2. A slot whose record went elsewhere stays with that substitute for `STAY_SECONDS`, even if its home is back before: a
   server that fails again and again does not scatter the records of a key over its comings and goings. What the
   substitute takes after that does not renew it: the slot goes home as soon as its home takes records.

Slots bound what is remembered: an outage touches every key, and there may be any number of keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

SLOTS = 65_536
STAY_SECONDS = 30.0


class Substitute(NamedTuple):
    """The log that takes the records of a slot in place of its home: until a time, and then while the home is away."""

    log_id: str
    until: float


class Routing:
    """The logs in the order in which each key tries them. Times are those of the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._logs: tuple[str, ...] = ()
        self._ranked: dict[int, tuple[str, ...]] = {}
        self._substitutes: dict[int, Substitute] = {}

    def use(self, logs: Iterable[str]) -> None:
        """Route to *logs*: all that are known, whether they respond at present or not."""
        known = tuple(sorted(logs))
        if known != self._logs:
            self._logs = known
            self._ranked.clear()

    def order(self, slot: int, now: float) -> tuple[str, ...]:
        """Return the logs in the order in which *slot* tries them: its substitute, if it has one, then by rank."""
        ranked = self._rank(slot)
        substitute = self._substitutes.get(slot)
        if substitute is None or now >= substitute.until:
            return ranked
        if substitute.log_id not in self._logs:
            del self._substitutes[slot]
            return ranked
        return (substitute.log_id, *(log_id for log_id in ranked if log_id != substitute.log_id))

    def stored(self, slot: int, log_id: str, now: float) -> None:
        """Note that *log_id* has taken a record of *slot*."""
        if log_id == self._rank(slot)[0]:
            self._substitutes.pop(slot, None)
            return
        known = self._substitutes.get(slot)
        if known is None or known.log_id != log_id:
            self._substitutes[slot] = Substitute(log_id, now + STAY_SECONDS)

    def _rank(self, slot: int) -> tuple[str, ...]:
        ranked = self._ranked.get(slot)
        if ranked is None:
            ranked = self._ranked[slot] = tuple(sorted(self._logs, key=lambda log_id: _weight(slot, log_id)))
        return ranked


def slot_of(key: str | bytes) -> int:
    """Return the slot of *key*; text and its UTF-8 are the same key."""
    raw = key.encode() if isinstance(key, str) else key
    return int.from_bytes(blake2b(raw, digest_size=2).digest(), "big")


def _weight(slot: int, log_id: str) -> bytes:
    return blake2b(slot.to_bytes(2, "big") + log_id.encode(), digest_size=8).digest()
