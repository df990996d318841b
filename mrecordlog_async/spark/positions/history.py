"""Finds which log responds at which address, and whether it is still the log that a checkpoint continues. Pure.

A log is identified by its public id. A log that is not what the checkpoint continues is held back: nothing is read from
it or truncated, its entry in the offset stays as it is, and the other logs go on. The evidence is in the offset and in
the log itself, so it is found at every start, however far the log has grown since.

| found | what happens |
|---|---|
| two addresses with one id and one opening | one server; read once |
| the log of one address at another | read on; names and addresses may change |
| two addresses with one id and different openings | held back: two live copies |
| an address that responds with several logs in turn (see `servers.roster`) | held back: a load balancer |
| another log at the address of one that no address has | both are held back, until the old one is forgotten |
| a log that lacks the state of the checkpoint | held back, until it is accepted that all of it is read again |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from mrecordlog_async.protocol.log_schemas import OpeningResponse
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.settings.offset import At, Offset, Positions, name_in, named
from mrecordlog_async.spark.settings.option_values import OptionError

OPENINGS_MAX = 1_024
"""This many openings a log remembers."""

FORGET_DIGITS = 8
"""The fewest digits that name a log to forget."""


class HeldLog(NamedTuple):
    """A log that is held back. server: its name, for people. why: a sentence about it, with what to do."""

    server: str
    why: str

    @property
    def sentence(self) -> str:
        """Return what is held back, and why."""
        return f"server {self.server!r}: {self.why}"


@dataclass(slots=True)
class Standing:
    """Listings of the servers, by log."""

    logs: dict[str, Listed] = field(default_factory=dict)  # log → its listing, with the name of the server that has it
    held: dict[str, HeldLog] = field(default_factory=dict)  # log → why nothing is read from it
    back: dict[str, str] = field(default_factory=dict)  # logs in *logs* that went back → the evidence


# Which log is where.


def placed(known: Offset, found: Mapping[str, Listed]) -> Offset:
    """Return *known* with the ids of logs that it knew by the names of servers only.

    A queue belongs to the log that has its id, whatever name that log's server has now; what is left belongs to the log
    of the server with that name. Where several entries are of one queue of a log, the one with the queue's id counts,
    and of those the highest.
    """
    keys = [key for key in known.positions if name_in(key) is not None]
    logs = {name: key_of(name, listed) for name, listed in found.items()}
    if not any(name_in(log) is None for log in logs.values()) or not keys:
        return known
    owners = {(queue, each.id): logs[name] for name, listed in found.items() for queue, each in listed.queues.items()}
    moved = known.without(frozenset(keys))
    for key in keys:
        server = known.servers[key]
        for queue, at in known.positions[key].items():
            owner = owners.get((queue, at[0]))
            log = owner or logs.get(server, key)
            moved.servers.setdefault(log, server)
            positions = moved.positions.setdefault(log, {})
            if _counts(at, positions.get(queue), owned=owner is not None):
                positions[queue] = at
    return moved


def _counts(at: list[int], present: list[int] | None, *, owned: bool) -> bool:
    """Return whether *at* replaces *present*, the position of a queue. owned: the log has the queue id of *at*."""
    if present is None or present[0] != at[0]:
        return present is None or owned
    return at[1] > present[1]


def key_of(name: str, listed: Listed) -> str:
    """Return the key of the log that the server *name* listed."""
    return listed.log or named(name)


def arrange(
    known: Offset,
    found: Mapping[str, Listed],
    balancers: Mapping[str, str] = MappingProxyType({}),
    copies: Mapping[str, str] = MappingProxyType({}),
) -> Standing:
    """Return which logs may be read.

    Args:
        known: the checkpoint, after `placed`.
        found: server → its listing; servers that could not be reached are missing.
        balancers: servers whose addresses are load balancers → why.
        copies: logs of which another live copy was seen → why.
    """
    standing = Standing(held={named(name): HeldLog(name, why) for name, why in balancers.items()})
    found = {name: listed for name, listed in found.items() if name not in balancers}
    addresses: dict[str, list[str]] = {}
    for name in sorted(found):
        addresses.setdefault(key_of(name, found[name]), []).append(name)
    missing = _missing(known, found, addresses)
    standing.held |= {log: HeldLog(server, _replaced(known, log, found[server])) for log, server in missing.items()}
    taken = set(missing.values())
    for log, names in addresses.items():
        if len({found[name].opening for name in names}) > 1:
            standing.held[log] = HeldLog(names[0], _copies(log, names))
            continue
        if log in copies:
            standing.held[log] = HeldLog(names[0], copies[log])
            continue
        # The place of a log that is missing is not for a log that the checkpoint does not know, under any of its names.
        if log in known.positions or taken.isdisjoint(names):
            recorded = known.servers.get(log)
            name = recorded if recorded in names else names[0]
            standing.logs[log] = replace(found[name], server=name)
    return standing


def _missing(known: Offset, found: Mapping[str, Listed], addresses: Collection[str]) -> dict[str, str]:
    """Return the logs that no address has though their server responds → that server. Empty logs are not missed."""
    return {
        log: known.servers[log]
        for log, queues in known.positions.items()
        if log not in addresses and known.servers.get(log) in found and (queues or log in known.at)
    }


def _replaced(known: Offset, log: str, now: Listed) -> str:
    if now.log in known.positions:
        looks = "another log of this checkpoint: addresses or volumes were swapped"
    elif now.at is None and not now.queues:
        looks = "new and empty: the disk was lost, or the directory was emptied"
    else:
        looks = "another one: the disk was replaced, or the address leads elsewhere"
    return (
        f"the checkpoint continues the log {log}, and no server has it; the log {now.log} at this address is {looks}. "
        "Serve the old log again, under any of the names; if it is lost, forget it (--forget, option forget: "
        f"{log[:FORGET_DIGITS]}), then the new one is read from its first record"
    )


def _copies(log: str, names: Sequence[str]) -> str:
    shown = " and ".join(map(repr, names))
    return (
        f"the servers {shown} have live copies of one log, {log}. Stop all but one of them, or remove them from servers"
    )


def forgotten(wanted: Collection[str], known: Offset, found: Mapping[str, Listed]) -> frozenset[str]:
    """Return the logs of *known* whose ids begin with one of *wanted*.

    Raises:
        OptionError: a server has such a log, or several logs begin with the same digits.
    """
    logs = set[str]()
    for digits in wanted:
        for name, listed in found.items():
            if listed.log.startswith(digits):
                raise OptionError(
                    f"forget: server {name!r} has the log {digits}, which is for logs that no server has; to read it "
                    "on, remove it from forget"
                )
        matching = [log for log in known.positions if log.startswith(digits)]
        if len(matching) > 1:
            raise OptionError(f"forget: several logs begin with {digits}; give all digits of one of them")
        logs.update(matching)
    return frozenset(logs)


# Whether a log still has what was read from it.


def needs_openings(known: At, now: At | None) -> bool:
    """Return whether the log's openings must be requested to tell whether it went back."""
    return now is not None and now.opening != known.opening


def lost_state(known: At, now: At | None, openings: Sequence[OpeningResponse]) -> str | None:
    """Return the evidence that a log is not what it was at *known*, and what it looks like; None if there is none.

    Args:
        known: the log's state that the checkpoint has.
        now: its state now; None if nothing was ever stored in it.
        openings: its openings, oldest first, if `needs_openings`.
    """
    if now is None:
        return f"it was read up to batch {known.batch}, and nothing was ever stored in it: it went back (an old copy)"
    end = now.batch if now.opening == known.opening else _end_of(known.opening, openings)
    if end is not None:
        if end >= known.batch:
            return None
        return (
            f"it was read up to batch {known.batch}, but it lost what followed batch {end}: it went back (a snapshot "
            "was restored, or a power failure lost what was not synced)"
        )
    if len(openings) >= OPENINGS_MAX and known.batch < openings[0].first_batch:
        return (
            f"it has been reopened more than {OPENINGS_MAX} times since it was last read, so it cannot prove that it "
            "was not rolled back"
        )
    since = ", and has been written to since" if now.batch >= known.batch else ""
    return (
        f"it does not know the opening in which it was read up to batch {known.batch}: it went back (a snapshot was "
        f"restored{since}), or it is a live copy of that log"
    )


def _end_of(nonce: str, openings: Sequence[OpeningResponse]) -> int | None:
    """Return the last batch of an opening that another one followed; None if it is unknown."""
    return next((after.first_batch - 1 for each, after in pairwise(openings) if each.nonce == nonce), None)


def held_back(server: str, evidence: str) -> HeldLog:
    """Return why a log that went back is held back."""
    return HeldLog(
        server,
        f"{evidence}. Serve the newest state of the log again; if it is lost, accept it (--accept-went-back, option "
        "acceptWentBack): then all that the log holds is read again, nothing is skipped, and records that were read "
        "before are read twice",
    )


def restarted(known: Offset, logs: Collection[str]) -> Positions:
    """Return the positions of *known* without those of *logs*, whose queues are then read from their first records."""
    return {log: ({} if log in logs else dict(queues)) for log, queues in known.positions.items()}
