"""Times that options name, as positions: each server is asked once, for all its queues.

A time means the first record that was stored then or later. So a read that begins at one time and ends at another
contains the records stored from the first until before the second, and reads of consecutive spans overlap nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from mrecordlog_async.model import FUTURE_SECONDS_MAX
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.connection import ServerDownError
from mrecordlog_async.spark.services.fleet import Fleet, same_opening
from mrecordlog_async.spark.settings.option_values import Bound, GivenPositions, OptionError


def starting_positions(
    wanted: Bound, fleet: Fleet, surveys: dict[str, Listed], servers: Iterable[str]
) -> str | GivenPositions:
    """Return where reading of *servers* begins, with the positions of a time.

    wanted: what the options say. surveys: the listings; a server that goes down during the call is removed.

    Raises:
        OptionError: the time is in the future.
    """
    if not isinstance(wanted, datetime):
        return wanted
    check_past(wanted)
    return _positions(wanted, fleet, surveys, servers)


def ending_positions(wanted: Bound, fleet: Fleet, surveys: dict[str, Listed]) -> str | GivenPositions:
    """Return where a batch read ends. A time in the future means the end; for the rest see `starting_positions`."""
    if not isinstance(wanted, datetime):
        return wanted
    return _positions(wanted, fleet, surveys, list(surveys)) if is_past(wanted) else "latest"


def check_past(time: datetime) -> None:
    """Raise OptionError for a start in the future."""
    if not is_past(time):
        now = datetime.now(UTC)
        raise OptionError(
            f"startingTimestamp: {time.astimezone(UTC)} is in the future: it is {now:%Y-%m-%d %H:%M:%S} UTC"
        )


def is_past(time: datetime) -> bool:
    """Return whether a log can be searched for *time*, by the clock of this machine."""
    return time <= datetime.now(UTC) + timedelta(seconds=FUTURE_SECONDS_MAX)


def _positions(time: datetime, fleet: Fleet, surveys: dict[str, Listed], servers: Iterable[str]) -> GivenPositions:
    found: dict[str, Mapping[str, int]] = {}
    for name in servers:
        try:
            found[name] = _of_server(time, fleet, name, surveys[name])
        except ServerDownError as error:
            fleet.outages.report(error)
            del surveys[name]
    return found


def _of_server(time: datetime, fleet: Fleet, name: str, listed: Listed) -> dict[str, int]:
    queues = {queue: summary.id for queue, summary in listed.queues.items()}
    client = fleet.client(name)
    found = same_opening(lambda: client.positions_at(time, queues, opening=listed.opening))
    # At most the end of the queue as it was listed: records stored since are past both.
    ends = {queue: summary.next_position for queue, summary in listed.queues.items()}
    return {each.queue: min(each.position, ends[each.queue]) for each in found if each.status == "ok"}
