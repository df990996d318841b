"""Holds the consumer of a stream on every queue that it reads, and acknowledges what the checkpoint has committed.

In this order, in the process that plans the stream; tasks hold nothing:

1. `add_rule`   before the first listing of a server: a queue that is created later has the consumer from then on
2. `attach`   to every queue that is listed and not held yet, and to all of a log that was reopened
3. `compare`   the consumer of a queue that was just attached with the checkpoint:

| the consumer stands | what happens |
|---|---|
| where the checkpoint does, or before it | the difference is acknowledged |
| after it | refused: the checkpoint is older, or another program acknowledges; `takeOver` moves the consumer back |

4. `due`, `acknowledge`   what the checkpoint has committed

Servers are given by the ids of their logs, as listings are (`Fleet.standing`): a consumer stays with its log.

A consumer has an owner, the query. Another owner is refused, unless `takeOver` is set; then the query that held the
consumer so far is refused from its next acknowledgement on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.patterns import ANY
from mrecordlog_async.protocol.consumer_schemas import AttachedOne
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.connection import ServerDownError
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.settings.offset import Positions
from mrecordlog_async.spark.settings.option_values import Subscription
from mrecordlog_async.spark.settings.options import Options

logger = logging.getLogger("mrecordlog_async.spark")

NAMED = 3
"""Number of queues that a sentence names."""


class ConsumerRefusedError(RecordLogError):
    """The consumer belongs to another query, or does not match the checkpoint; nothing was read or acknowledged."""


class ConsumerLostError(RecordLogError):
    """Another holder has attached to the consumer, or it was deleted: the query ends."""


@dataclass(slots=True)
class Hold:
    """A consumer that is held. position: the first one that is not acknowledged."""

    id: int
    epoch: int
    position: int


class Holder:
    """The holder of one consumer on all queues of a fleet. For one thread, except `add_rule`."""

    def __init__(self, consumer: str, options: Options, fleet: Fleet) -> None:
        self._consumer = consumer
        self._owner = options.consumer_owner
        self._take_over = options.take_over
        self._fleet = fleet
        self._rule = rule_of(options.subscription)
        self._ruled: set[str] = set()  # servers that have the rule
        self._openings: dict[str, str] = {}
        self._holds: dict[str, dict[str, Hold]] = {}
        self._fresh: dict[str, set[str]] = {}  # queues whose consumer is to be compared with the checkpoint
        self._known: dict[str, set[str]] = {}  # queues that were held before: they are not taken over again
        self._expects_kept = False
        self._warned: set[str] = set()  # servers with queues that keep acknowledged records

    @property
    def has_begun(self) -> bool:
        """True if it has attached to anything."""
        return bool(self._openings)

    def add_rule(self, server: str) -> None:
        """Make sure that *server* gives the consumer to new queues. Called by one thread per server."""
        if self._rule is not None and server not in self._ruled:
            self._fleet.client(server).add_rule(self._rule, self._consumer)
            self._ruled.add(server)

    def attach(self, logs: dict[str, Listed]) -> bool:
        """Attach to every listed queue that is not held yet.

        Returns whether anything was attached; then list again: records may have been dropped before the attach. A
        server that goes down during the call is removed from *logs*.

        Raises:
            ConsumerRefusedError: the consumer belongs to another owner.
        """
        attached = False
        for server, listed in list(logs.items()):
            if self._openings.get(server) != listed.opening:
                # Under a weak policy, an opening that follows a power cut makes all earlier epochs invalid.
                self._openings[server], self._holds[server] = listed.opening, {}
            holds = self._holds[server]
            wanted = [queue for queue, at in listed.queues.items() if queue not in holds or holds[queue].id != at.id]
            try:
                attached |= bool(wanted) and self._attach(server, wanted)
            except ServerDownError as error:
                self._fleet.outages.report(error)
                del logs[server]
        return attached

    def _attach(self, server: str, queues: list[str]) -> bool:
        known = self._known.setdefault(server, set())
        again = [queue for queue in queues if queue in known]
        new = [queue for queue in queues if queue not in known]
        client, found, log = self._fleet.client(server), list[AttachedOne](), self._fleet.log_of(server)
        # Only the first attach may take over. A queue that was held before and is lost now has another holder since:
        # taking it back would make two queries take the consumer from each other for ever.
        for part, take_over in ((new, self._take_over), (again, False)):
            found += client.attach(self._consumer, part, owner=self._owner, take_over=take_over, log=log)
        self._refuse_owned(server, [one for one in found if one.status == "owned"])
        held = [one for one in found if one.status == "ok"]
        for one in held:
            self._holds[server][one.queue] = Hold(one.id, one.epoch, one.position)
            known.add(one.queue)
            self._fresh.setdefault(server, set()).add(one.queue)
        self._warn_of_kept(server, [one.queue for one in held if one.keep != "until_acknowledged"])
        full = [one for one in found if one.status == "full"]
        if full:
            logger.warning(
                "consumer %r could not attach to %s of %r, which are not acknowledged, and not read if they are new; "
                "retrying: %s",
                self._consumer,
                _listed(one.queue for one in full),
                self._fleet.name_of(server),
                full[0].detail,
            )
        return bool(held)

    def _refuse_owned(self, server: str, owned: list[AttachedOne]) -> None:
        """Raise ConsumerRefusedError if a consumer has another owner."""
        if owned:
            raise ConsumerRefusedError(
                f"{self._shown(server)}, {_listed(one.queue for one in owned)}: the consumer {self._consumer!r} "
                f"belongs to another query ({owned[0].detail}). Use another consumer; or, if that query is stopped for "
                "good, take its consumer over with takeOver=true (--take-over), and remove that option afterwards"
            )

    def expect_kept(self) -> None:
        """Log no warning about queues that keep what is acknowledged."""
        self._expects_kept = True

    def _warn_of_kept(self, server: str, kept: list[str]) -> None:
        if kept and not self._expects_kept and server not in self._warned:
            self._warned.add(server)
            logger.warning(
                "server %r: acknowledging removes nothing from %s, where records are kept until they are truncated; "
                "`mrecordlog configure URL QUEUE --keep until_acknowledged` changes that",
                self._fleet.name_of(server),
                _listed(kept),
            )

    def _shown(self, server: str) -> str:
        return f"server {self._fleet.name_of(server)!r}"

    def holds(self, server: str, queue: str, queue_id: int) -> bool:
        """Return whether the consumer of this incarnation of a queue is held."""
        hold = self._holds.get(server, {}).get(queue)
        return hold is not None and hold.id == queue_id

    def held(self, positions: Positions) -> Positions:
        """Return *positions* without those of queues whose consumer is not held: these are not read yet."""
        return {
            server: {queue: at for queue, at in queues.items() if self.holds(server, queue, at[0])}
            for server, queues in positions.items()
        }

    def compare(self, positions: Positions, logs: Mapping[str, Listed], *, refuse: bool = True) -> None:
        """Compare consumers that were just attached with *positions*, where the stream continues.

        refuse: refuse consumers that are ahead, unless they are taken over; otherwise move them back.

        Raises:
            ConsumerRefusedError: a consumer is ahead of the checkpoint.
        """
        ahead = []
        for server, queue, hold, goal in self._uncompared(positions, logs):
            if hold.position <= goal:
                self._fresh[server].discard(queue)
            elif refuse and not self._take_over:
                ahead.append(f"{self._shown(server)}, queue {queue!r}: it is at {hold.position}, not at {goal}")
            else:
                self._move_back(server, queue, hold, goal)
        if ahead:
            raise ConsumerRefusedError(
                f"the consumer {self._consumer!r} has acknowledged records that this stream has not stored: "
                f"{'; '.join(ahead[:NAMED])}. Another program uses this consumer, or the checkpoint is older than the "
                "consumer: use the newest checkpoint, or another consumer. takeOver=true (--take-over) moves the "
                "consumer back to where the checkpoint stands"
            )

    def _uncompared(self, positions: Positions, logs: Mapping[str, Listed]) -> Iterator[tuple[str, str, Hold, int]]:
        """Yield (server, queue, hold, position that it may have) for what was attached since the last comparison."""
        for server, fresh in self._fresh.items():
            if not fresh or server not in logs:
                continue
            for queue in sorted(fresh & positions.get(server, {}).keys()):
                queue_id, position = positions[server][queue]
                if self.holds(server, queue, queue_id) and queue in logs[server].queues:
                    goal = max(position, logs[server].queues[queue].first_position)
                    yield server, queue, self._holds[server][queue], goal

    def _move_back(self, server: str, queue: str, hold: Hold, position: int) -> None:
        """Keep the records that the stream has yet to store."""
        self._fleet.client(server).seek(self._consumer, queue, (hold.id, position, hold.epoch))
        logger.warning(
            "server %r, queue %r: moved consumer %r from %d back to %d, where the checkpoint stands",
            self._fleet.name_of(server),
            queue,
            self._consumer,
            hold.position,
            position,
        )
        hold.position = position
        self._fresh[server].discard(queue)

    def due(self, intact: Positions, logs: Mapping[str, Listed]) -> Positions:
        """Return what can be acknowledged: server → queue → [id, last position]."""
        found: Positions = {}
        for server, queues in intact.items():
            holds, listing = self._holds.get(server, {}), logs[server].queues
            due = {
                queue: [queue_id, position - 1]
                for queue, (queue_id, position) in queues.items()
                if queue in holds
                and holds[queue].id == queue_id
                and holds[queue].position < position <= listing[queue].next_position
            }
            if due:
                found[server] = due
        return found

    def acknowledge(self, server: str, due: Mapping[str, list[int]], opening: str) -> None:
        """Acknowledge what `due` returned for one server, after it is durable elsewhere.

        Raises:
            ConsumerLostError: another holder has attached, or the consumer was deleted.
        """
        holds = self._holds[server]
        # With the epoch of the attach: a holder that has been replaced since moves nothing.
        wanted = {queue: (at[0], at[1], holds[queue].epoch) for queue, at in due.items()}
        lost = []
        for one in self._fleet.client(server).acknowledge(self._consumer, wanted, opening=opening):
            if one.status == "ok":
                holds[one.queue].position = one.position
            elif one.status in ("fenced", "no_consumer"):
                lost.append(one)
            else:
                name, reason = self._fleet.name_of(server), one.detail or one.status
                logger.warning("queue %r of %r was not acknowledged: %s", one.queue, name, reason)
        if lost:
            raise ConsumerLostError(
                f"{self._shown(server)}, {_listed(one.queue for one in lost)}: the consumer {self._consumer!r} is no "
                f"longer held by this query ({lost[0].detail}). What is stored stays stored. Give each query its own "
                "consumer; if this one was deleted, start again to create it"
            )


def _listed(queues: Iterable[str]) -> str:
    """Return the first of *queues*, for a sentence."""
    names = list(queues)
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ("queue " if len(names) == 1 else "queues ") + ", ".join(map(repr, names[:NAMED])) + more


_LITERAL = re.compile(r"(?:[^\\.^$*+?{}\[\]|()]|\\[^\w*])*")


def rule_of(subscription: Subscription) -> str | None:
    """Return the pattern of the rule that covers *subscription*; None if no rule covers exactly that.

    A rule that covers more would give a consumer to queues that nobody reads, and these would keep their records for
    ever. Without a rule, a queue gets the consumer when it is listed for the first time.
    """
    if subscription.names is not None:
        return None
    if subscription.pattern is None:
        return ANY
    parts = subscription.pattern.split(".*")
    if len(parts) == 1 or not all(_LITERAL.fullmatch(part) for part in parts):
        return None
    return ANY.join(re.sub(r"\\(.)", r"\1", part) for part in parts)
