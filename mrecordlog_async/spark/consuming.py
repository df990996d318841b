"""A drain as one of several readers: it holds a consumer of each queue, and acknowledges instead of truncating.

In this order, in the thread of the server:

1. a rule gives the consumer to queues that are created later, before the first listing
2. attach to each queue that is listed and not held, and to all of a log that was opened again; then list again, because
   records may have been removed before
3. compare: a consumer that is before what is stored gets the difference acknowledged; one that is after it is refused
4. acknowledge what is stored, once it is durable

An epoch names the holder. Another one that attaches fences this one off: it is not attached to again. Two names of one
log share what is held, or they would fence each other off.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.patterns import ANY
from mrecordlog_async.protocol import bulk_calls, calls
from mrecordlog_async.protocol.consumer_schemas import AcknowledgeOne, AttachedOne, AttachResponse
from mrecordlog_async.protocol.schemas import QueueResponse
from mrecordlog_async.spark.log_server import LogListing, LogServer
from mrecordlog_async.spark.state import LogState

logger = logging.getLogger("mrecordlog_async.spark")

NAMED = 3
"""Number of queues that a sentence names."""


class ConsumerNotOursError(RecordLogError):
    """The consumer belongs to another reader, is ahead of what is stored, or was taken away: the drain ends."""


class ConsumerOfDrain(NamedTuple):
    """A consumer.

    Attributes:
        name: Its name.
        owner: A UUID of who alone may hold it; None for anybody.
        rule: The pattern of the queues that have it; None for no rule.
        take_over: Take it over from another owner.
    """

    name: str
    owner: str | None
    rule: str | None = "*"
    take_over: bool = False


_LITERAL = re.compile(r"(?:[^\\.^$*+?{}\[\]|()]|\\[^\w*])*")
"""A part of a regular expression that stands for itself."""


def rule_of(names: Collection[str] | None, pattern: str | None) -> str | None:
    """Return the pattern of the rule that covers exactly these queues; None if no rule does.

    A rule that covers more would give a consumer to queues that nobody reads, and these would keep their records for
    ever. Without a rule, a queue gets the consumer when it is listed for the first time.

    names: of the queues; None for those whose whole name matches *pattern*, or for all.
    """
    if names is not None:
        return None
    if pattern is None:
        return ANY
    parts = pattern.split(".*")
    if len(parts) == 1 or not all(_LITERAL.fullmatch(part) for part in parts):
        return None
    return ANY.join(re.sub(r"\\(.)", r"\1", part) for part in parts)


class _Hold(NamedTuple):
    """A consumer of one queue that is held. position: the first one that is not acknowledged."""

    epoch: int
    position: int


@dataclass(slots=True)
class _LogHolds:
    """What is held of one log, in one opening: one that follows a power cut may make all earlier epochs invalid.

    Attributes:
        log: Its id.
        opening: The opening.
        known: Queues that were held before: they are not taken over again.
        holds: Queue id → what is held.
        fresh: Queues whose consumer is to be compared with what is stored.
        lock: Whoever attaches or compares has it.
    """

    log: str
    opening: str
    known: set[int]
    holds: dict[int, _Hold] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Holds:
    """What one reader holds, log by log: the threads of two servers may find the same log. For any thread."""

    def __init__(self) -> None:
        self._logs: dict[str, _LogHolds] = {}
        self._lock = threading.Lock()

    def of(self, log: str, opening: str) -> _LogHolds:
        """Return what is held of *log*; nothing yet if it was opened again."""
        with self._lock:
            found = self._logs.get(log)
            if found is None or found.opening != opening:
                found = self._logs[log] = _LogHolds(log, opening, set() if found is None else found.known)
            return found


class ConsumerHolder:
    """Holds one consumer on the queues of one server. For the server's thread."""

    def __init__(self, consumer: ConsumerOfDrain, server: LogServer, holds: Holds) -> None:
        self._consumer, self._server, self._all = consumer, server, holds
        self._has_rule = consumer.rule is None
        self._now = _LogHolds("", "", set())  # of the log that the server had at the last look
        self._said = set[str]()

    def listing(self) -> LogListing:
        """List all queues of the log, after a rule gives the consumer to those that are created later."""
        if not self._has_rule:
            rule = self._consumer.rule or "*"
            self._server.send(calls.create_consumer(rule, self._consumer.name, start=None, exist_ok=True))
            self._has_rule = True
        return self._server.listing()

    def attach(self, whole: LogListing, wanted: Mapping[str, QueueResponse]) -> bool:
        """Attach to the queues of *wanted* that are not held; return whether to list again.

        Raises:
            ConsumerNotOursError: the consumer has another owner.
        """
        if (self._now.log, self._now.opening) != (whole.log, whole.opening):
            self._now = self._all.of(whole.log, whole.opening)
        with self._now.lock:
            return self._attach(whole, wanted)

    def _attach(self, whole: LogListing, wanted: Mapping[str, QueueResponse]) -> bool:
        missing = [each for each in wanted.values() if each.id not in self._now.holds]
        found = list[AttachedOne]()
        # Only the first attach may take over: otherwise two readers would take the consumer from each other for ever.
        for take_over in (True, False):
            names = [each.queue for each in missing if (each.id not in self._now.known) is take_over]
            for part in bulk_calls.parts(names):
                given = take_over and self._consumer.take_over
                call = bulk_calls.attach(self._consumer.name, part, owner=self._consumer.owner, take_over=given)
                attached = self._server.send(call, whole.log)
                found += attached
        owned = [each for each in found if each.status == "owned"]
        if owned:
            raise ConsumerNotOursError(
                f"{self._shown(owned)}: the consumer {self._consumer.name!r} belongs to another reader "
                f"({owned[0].detail}). Use another consumer; or, if that reader is stopped for good, take it over once "
                "with --take-over (takeOver=true in Spark)"
            )
        held = [each for each in found if each.status == "ok"]
        for each in held:
            self._now.holds[each.id] = _Hold(each.epoch, each.position)
        self._now.fresh |= {each.id for each in held}
        self._now.known |= {each.id for each in held}
        self._warn(
            [each for each in held if each.keep != "until_acknowledged"],
            "acknowledging removes nothing from {}, where records are kept until they are truncated; `mrecordlog "
            "configure URL QUEUE --keep until_acknowledged` changes that",
        )
        self._warn(
            [each for each in found if each.status == "full"],
            "the consumer could not attach to {}, which are not read: the log has no room for it",
        )
        return bool(held)

    def held(self, queues: Mapping[str, QueueResponse]) -> dict[str, QueueResponse]:
        """Return those of *queues* whose consumer is held."""
        return {name: each for name, each in queues.items() if each.id in self._now.holds}

    def compare(self, stored: LogState | None, listing: LogListing, *, moves_back: bool) -> None:
        """Compare consumers that were just attached with what is stored of the log.

        moves_back: move those back that are ahead, and keep the records that they have not lost yet.

        Raises:
            ConsumerNotOursError: a consumer is ahead of what is stored.
        """
        with self._now.lock:
            self._compare(stored, listing, moves_back=moves_back)

    def _compare(self, stored: LogState | None, listing: LogListing, *, moves_back: bool) -> None:
        for name, each in listing.queues.items():
            if each.id not in self._now.fresh:
                continue
            at = None if stored is None else stored.queues.get(name)
            goal = max(each.first_position, at.next if at is not None and at.id == each.id else 0)
            hold = self._now.holds[each.id]
            if hold.position > goal and not (moves_back or self._consumer.take_over):
                raise ConsumerNotOursError(
                    f"server {self._server.name!r}, queue {name!r}: the consumer {self._consumer.name!r} has "
                    f"acknowledged up to position {hold.position}, and the output has the records before {goal}: "
                    "another program uses this consumer, or the output is older. Use another consumer; or move this "
                    "one back with --take-over (takeOver=true in Spark)"
                )
            if hold.position > goal:
                holder = AttachResponse(name, self._consumer.name, each.id, hold.epoch, hold.position)
                self._server.send(calls.seek(name, self._consumer.name, goal, holder), listing.log)
                self._now.holds[each.id] = hold._replace(position=goal)
            self._now.fresh.discard(each.id)

    def due(self, stored: LogState, listing: LogListing) -> list[AcknowledgeOne]:
        """Return what can be acknowledged because it is stored."""
        return [
            AcknowledgeOne(name, self._consumer.name, at.next - 1, hold.epoch, at.id)
            for name, at in stored.queues.items()
            if (hold := self._now.holds.get(at.id)) is not None
            and (now := listing.queues.get(name)) is not None
            and now.id == at.id
            and hold.position < at.next <= now.next_position
        ]

    def acknowledge(self, due: Sequence[AcknowledgeOne], listing: LogListing) -> None:
        """Acknowledge what is durable elsewhere. It is refused if the log was opened again since *listing*.

        Raises:
            ConsumerNotOursError: another holder has attached, or the consumer was deleted.
        """
        for part in bulk_calls.parts(due):
            found = self._server.send(bulk_calls.acknowledge(part, listing.opening), listing.log)
            for asked, each in zip(part, found, strict=True):
                if each.status == "ok":
                    self._now.holds[asked.id or 0] = _Hold(asked.epoch, each.position)
                elif each.status in ("fenced", "no_consumer"):
                    raise ConsumerNotOursError(
                        f"server {self._server.name!r}, queue {each.queue!r}: the consumer {self._consumer.name!r} is "
                        f"no longer held here ({each.detail}). Give each reader its "
                        "own consumer; if this one was deleted, start again to create it"
                    )

    def _shown(self, queues: Sequence[AttachedOne]) -> str:
        names = ", ".join(repr(each.queue) for each in queues[:NAMED])
        more = f" and {len(queues) - NAMED:,} more" if len(queues) > NAMED else ""
        return f"server {self._server.name!r}, queues {names}{more}"

    def _warn(self, queues: Sequence[AttachedOne], what: str) -> None:
        if queues and what not in self._said:
            self._said.add(what)
            logger.warning("consumer %r: %s", self._consumer.name, what.format(self._shown(queues)))
