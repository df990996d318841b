"""Where options say that reading begins or ends in the queues of one server: words, positions, and times.

A time means the first record that was stored then or later. So reads of consecutive spans overlap nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from mrecordlog_async.model import FUTURE_SECONDS_MAX
from mrecordlog_async.protocol.schemas import QueueResponse
from mrecordlog_async.spark.log_server import ListingOutdatedError, LogListing, LogServer
from mrecordlog_async.spark.options import EARLIEST, LATEST, Bound, OptionError


def check_start(wanted: Bound) -> None:
    """Raise OptionError for a start in the future."""
    if isinstance(wanted, datetime) and not is_past(wanted):
        now = datetime.now(UTC)
        raise OptionError(
            f"startingTimestamp: {wanted.astimezone(UTC)} is in the future: it is {now:%Y-%m-%d %H:%M:%S} UTC"
        )


def is_past(time: datetime) -> bool:
    """Return whether a log can be searched for *time*, by the clock of this machine."""
    return time <= datetime.now(UTC) + timedelta(seconds=FUTURE_SECONDS_MAX)


def resolved(
    server: LogServer, listing: LogListing, wanted: Bound, *, absent: int = EARLIEST
) -> tuple[dict[str, int], list[str]]:
    """Return the position that *wanted* means in each queue, and one sentence for each that had to be moved.

    Args:
        server: where to look for a time.
        listing: the queues.
        wanted: what the options say.
        absent: `EARLIEST` or `LATEST`, for queues that given positions do not name.
    """
    if isinstance(wanted, datetime):
        if not is_past(wanted):  # of an end
            return {name: each.next_position for name, each in listing.queues.items()}, []
        queues = {name: each.id for name, each in listing.queues.items()}
        found = {}
        for at in server.positions_at(wanted, queues, listing):
            if at.status != "ok":
                raise ListingOutdatedError(
                    f"server {server.name!r}, queue {at.queue!r}: it was deleted while its positions were looked up; "
                    "read again"
                )
            found[at.queue] = at.position
        # At most the end of the queue as it was listed: records stored since are past both.
        return {name: min(found.get(name, 0), each.next_position) for name, each in listing.queues.items()}, []
    positions, moved = {}, list[str]()
    given: Mapping[str, int] = {} if isinstance(wanted, str) else wanted.get(server.name, {})
    default = absent if not isinstance(wanted, str) else LATEST if wanted == "latest" else EARLIEST
    for name, each in listing.queues.items():
        position = given.get(name, default)
        positions[name] = _within(position, each)
        if position not in (EARLIEST, LATEST) and not _is_there(position, each):
            first, following = each.first_position, each.next_position
            where = f"server {server.name!r}, queue {name!r}"
            moved.append(f"{where}: position {position} is not in {first} to {following}")
    return positions, moved


def _is_there(position: int, queue: QueueResponse) -> bool:
    return max(position, queue.began) >= queue.first_position and position <= queue.next_position


def _within(position: int, queue: QueueResponse) -> int:
    if position in (EARLIEST, LATEST):
        return queue.first_position if position == EARLIEST else queue.next_position
    return min(max(position, queue.first_position), queue.next_position) if not _is_there(position, queue) else position


def refuse_unknown_queues(wanted: Bound, option: str, listings: Mapping[str, LogListing]) -> None:
    """Raise OptionError for queues that *wanted* names and that do not exist."""
    for server, queues in {} if isinstance(wanted, str | datetime) else wanted.items():
        there = listings[server].queues if server in listings else queues
        unknown = sorted(set(queues) - set(there))
        if unknown:
            raise OptionError(
                f"{option}: server {server!r} has no queue {unknown[0]!r}; remove it, or correct its name"
            )


def refuse_unsubscribed(names: Iterable[str] | None, listings: Mapping[str, LogListing], *, all_there: bool) -> None:
    """Raise OptionError for subscribed names that no server has; not while a server is down, which may have them."""
    if names is not None and all_there:
        there = {queue for listing in listings.values() for queue in listing.queues}
        unknown = sorted(set(names) - there)
        if unknown:
            raise OptionError(
                f"subscribe: no server has a queue {unknown[0]!r}; create it first, or use subscribePattern for queues "
                "that will be created later"
            )
