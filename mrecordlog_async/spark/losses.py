"""Decides whether a log is still what an output continues, and what it has lost. Pure: state and listing in.

A log is identified by its public id. One that is not what the output continues is held back: nothing is read from it or
truncated, its state stays, and the other logs go on.

| found | what happens |
|---|---|
| two servers with one log in one opening | read once, under the name that it had before |
| a known log at another server | read on; names and addresses may change |
| two servers with one log in different openings | held back: two live copies |
| another log at the server of one that no server has | both are held back, until the old one is forgotten |
| a log that lacks the state of the output | held back, until it is accepted that all of it is stored again |
| a queue that was deleted, recreated or truncated with unread records | a loss: the drain stops, until it is accepted |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec.structs import replace

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.protocol.log_schemas import OpeningResponse
from mrecordlog_async.protocol.schemas import QueueResponse
from mrecordlog_async.spark.log_server import LogListing
from mrecordlog_async.spark.state import DrainState, LogAt, LogState, QueueAt

OPENINGS_MAX = 1_024
"""This many openings a log remembers."""

FORGET_DIGITS = 8
"""The fewest digits that name a log to forget."""

BY_WHOM = "by another program, or by max_age or drop_oldest of the queue"


class UnreadLossError(RecordLogError):
    """Records were removed from a log before they were stored."""


class ServersHeldError(RecordLogError):
    """Logs are held back, and nothing else can be read."""

    def __init__(self, held: Mapping[str, str]) -> None:
        """Take the servers whose logs are held back, each with the reason."""
        super().__init__(held)
        self.held = held

    def message(self) -> str:
        """Return why, server by server."""
        return "; ".join(f"server {name!r}: {why}" for name, why in self.held.items())


class ForgetError(RecordLogError, ValueError):
    """The log to forget is served, is unknown, or is not the only one with these digits."""


@dataclass(slots=True)
class Standing:
    """Which logs may be read: log → the name of its server; and log or server → why it is held back."""

    servers: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)  # server → a sentence about its log


def arrange(state: DrainState, found: Mapping[str, LogListing]) -> Standing:
    """Return which of the listed logs may be read.

    Args:
        state: what the output has.
        found: server → its listing; servers that did not respond are missing.
    """
    standing, names = Standing(), dict[str, list[str]]()
    for name in sorted(found):
        names.setdefault(found[name].log, []).append(name)
    missing = {
        each.server: log
        for log, each in state.logs.items()
        if log not in names and each.server in found and (each.queues or each.at)
    }
    standing.held |= {server: _replaced(state, log, found[server]) for server, log in missing.items()}
    for log, servers in names.items():
        if len({found[name].opening for name in servers}) > 1:
            shown = " and ".join(map(repr, servers))
            why = f"the servers {shown} have live copies of the log {log}: stop all but one of them"
            standing.held |= dict.fromkeys(servers, why)
        # The place of a log that is missing is not for one that the output does not know, under any of its names.
        elif log in state.logs or missing.keys().isdisjoint(servers):
            known = state.logs.get(log)
            standing.servers[log] = known.server if known is not None and known.server in servers else servers[0]
    return standing


def _replaced(state: DrainState, log: str, now: LogListing) -> str:
    if now.log in state.logs:
        looks = "another log of this output: addresses or volumes were swapped"
    elif now.at is None and not now.queues:
        looks = "new and empty: the disk was lost, or the directory was emptied"
    else:
        looks = "another one: the disk was replaced, or the address leads elsewhere"
    return (
        f"the output continues the log {log}, and no server has it; the log {now.log} at this address is {looks}. "
        "Serve the old log again, under any of the names; or, if it is lost, forget it with --forget "
        f"{log[:FORGET_DIGITS]} (forget={log[:FORGET_DIGITS]} in Spark): then the new one is read from its first record"
    )


def forgotten(state: DrainState, wanted: Collection[str], found: Collection[LogListing]) -> DrainState:
    """Return *state* without the logs whose ids begin with one of *wanted*; itself if there are none."""
    dropped = set[str]()
    for digits in wanted:
        if len(digits) < FORGET_DIGITS:
            raise ForgetError(
                f"--forget {digits} (forget in Spark): give at least {FORGET_DIGITS} digits of the log's id"
            )
        if any(each.log.startswith(digits) for each in found):
            raise ForgetError(
                f"--forget {digits} (forget in Spark): a server has this log; to continue reading it, leave this out"
            )
        matching = [log for log in state.logs if log.startswith(digits)]
        if len(matching) > 1:
            raise ForgetError(
                f"--forget {digits} (forget in Spark): several logs begin with these digits; give all digits of one"
            )
        dropped.update(matching)
    if not dropped:
        return state
    return replace(state, logs={log: each for log, each in state.logs.items() if log not in dropped})


# Whether a log still has what was read from it.


def evidence_of_going_back(known: LogAt | None, now: LogListing, openings: Sequence[OpeningResponse]) -> str | None:
    """Return the evidence that a log is not what it was at *known*; None if there is none.

    A log keeps its openings. One that was restored from a copy lacks the opening, or ends it earlier.

    openings: of the log, oldest first; not used while the opening is the one of *known*.
    """
    if known is None:
        return None
    if now.at is None:
        return f"it was read up to batch {known.batch}, and nothing was ever stored in it"
    if now.at.opening == known.opening:
        end: int | None = now.at.batch
    else:
        ends = {one.nonce: after.first_batch - 1 for one, after in pairwise(openings)}
        end = ends.get(known.opening)
    if end is not None:
        lost = f"it was read up to batch {known.batch}, and it lost what followed batch {end}"
        return None if end >= known.batch else lost
    if len(openings) >= OPENINGS_MAX and known.batch < openings[0].first_batch:
        return f"it was opened more than {OPENINGS_MAX} times since it was last read, and cannot prove that it is newer"
    return f"it does not know the opening in which it was read up to batch {known.batch}"


def held_back(evidence: str) -> str:
    """Return the sentence about a log that went back."""
    return (
        f"{evidence}: it went back (an old copy was restored, or a power failure lost what was not synced). Serve its "
        "newest state again; or, if that is lost, accept it with --accept-went-back (acceptWentBack=true in "
        "Spark): then all that the log holds is stored again, and records that were stored before are in the output "
        "twice"
    )


def gone(known: LogState, listing: LogListing, includes: Callable[[str], bool]) -> dict[str, QueueAt]:
    """Return the queues that are no longer listed under their id. includes: whether a queue is subscribed."""
    found = {}
    for name, at in known.queues.items():
        now = listing.queues.get(name)
        if (now is None or now.id != at.id) and includes(name):
            found[name] = at
    return found


def continued(
    known: LogState | None, server: str, listing: LogListing, ended: Mapping[str, int | None], *, all_queues: bool
) -> tuple[LogState, list[str]]:
    """Return where reading continues in each listed queue, and one sentence for each loss.

    Args:
        known: what is stored of the log; None for nothing.
        server: the name of the server that has it.
        listing: its queues, those that are subscribed. A queue that is known and not among them keeps its entry, unless
            it is in *ended*.
        ended: where a queue that was deleted ended, for each of `gone`; None if the service does not know.
        all_queues: all queues are subscribed, so one with a higher id than the known ones was created since.
    """
    queues, lost = dict(known.queues) if known is not None else {}, list[str]()
    newest = max((each.id for each in queues.values()), default=0) if known is not None and known.at else None

    def note(name: str, what: str) -> None:
        lost.append(f"server {server!r}, queue {name!r}: {what}")

    for name, end in ended.items():
        at = queues.pop(name)
        how = "it was deleted and recreated" if name in listing.queues else "it was deleted"
        if end is None:
            note(name, f"{how}; it is unknown whether it held records from position {at.next} on")
        elif end > at.next:
            note(name, f"{how}; positions {at.next} to {end - 1} were not stored")
    for name, each in listing.queues.items():
        stored = queues.get(name)
        if stored is not None:
            position = stored.next
        else:
            is_new = newest is not None and each.id > newest and all_queues
            position = each.began if is_new else each.first_position
        if max(position, each.began) < each.first_position:
            note(
                name,
                f"positions {position} to {each.first_position - 1} were truncated before they were stored, {BY_WHOM}",
            )
        queues[name] = QueueAt(each.id, max(position, each.first_position))
    return LogState(server, listing.at, queues), lost


def ahead(known: LogState, listing: LogListing) -> str | None:
    """Return the evidence that a queue ends before the position where reading continues; None if there is none."""
    for name, each in listing.queues.items():
        at = known.queues.get(name)
        if at is not None and at.id == each.id and at.next > each.next_position:
            return f"queue {name!r} ends at position {each.next_position}, and was read up to {at.next}"
    return None


def waiting(at: QueueAt, queue: QueueResponse) -> int:
    """Return about how many records of *queue* are not stored; exact where positions have no gaps."""
    return min(queue.next_position - at.next, queue.records)


def left(known: LogState | None, listing: LogListing) -> int:
    """Return about how many records of the listed queues are not stored. known: what is stored of the log."""
    queues = {} if known is None else known.queues
    stored = {name: at for name, each in listing.queues.items() if (at := queues.get(name)) and at.id == each.id}
    return sum(
        max(0, waiting(stored[name], each)) if name in stored else each.records for name, each in listing.queues.items()
    )
