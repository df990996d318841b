"""Offsets of a stream, as Spark's checkpoint has them: the positions of all queues of all logs. Pure.

    {"version": 4, "logs": {"4f…": {"server": "a", "at": ["9f…", 17], "queues": {"orders": [id, next]}, "first": {…}}}}

`first` has where reading began in queues that the offset before does not have; without it, the version is 3. A batch
that Spark runs again has the same records: where the offset before has a queue, it says where reading began.

Earlier versions wrote the same form, but one with `openings`, of before 0.2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.state import LogAt, LogState, QueueAt

Json = dict[str, Any]

VERSION, WITH_FIRST = 3, 4
"""A package that does not know `first` refuses its version: it would skip the records of a new queue."""


class CheckpointError(RecordLogError):
    """An offset in the checkpoint was not written by this data source, or has an unknown version."""


def encoded(logs: Mapping[str, LogState], first: Mapping[str, Mapping[str, int]]) -> Json:
    """Return an offset with sorted keys: Spark compares offsets as text. first: log → queue → where reading began."""
    found: Json = {}
    for log, each in sorted(logs.items()):
        queues = {name: list(at) for name, at in sorted(each.queues.items())}
        found[log] = {"server": each.server, "at": each.at and list(each.at), "queues": queues}
        if each.origin:
            found[log]["origin"] = each.origin
        if first.get(log):
            found[log]["first"] = dict(sorted(first[log].items()))
    return {"version": WITH_FIRST if any(first.values()) else VERSION, "logs": found}


def first_of(offset: Mapping[str, Any], log: str) -> Mapping[str, int]:
    """Return where reading of *log* began in queues that the offset before does not have."""
    found: Mapping[str, int] = offset["logs"][log].get("first", {})
    return found


def logs_of(offset: Mapping[str, Any]) -> dict[str, LogState]:
    """Return the positions in an offset, or in {}, by the ids of logs. Raises CheckpointError."""
    if not offset:
        return {}
    if offset.get("version", 1) not in (VERSION, WITH_FIRST):
        raise CheckpointError(
            f"the checkpoint holds offsets of version {offset.get('version', 1)!r}, this package reads versions "
            f"{VERSION} and {WITH_FIRST}: continue with the package that wrote it, or start with a new checkpoint and "
            "a new output"
        )
    try:
        return {log: _log_of(log, each) for log, each in offset["logs"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"an offset in the checkpoint is damaged ({error!r}): restore the checkpoint, or start with a new "
            "checkpoint and a new output"
        ) from None


def _log_of(log: str, each: Mapping[str, Any]) -> LogState:
    for queue in (queue for queues in each.get("openings", {}).values() for queue in queues):
        raise CheckpointError(
            f"the checkpoint has a position of server {each['server']!r}, queue {queue!r}, from before 0.2.0, "
            "which this version cannot compare with the log: run it once with 0.2.0, subscribed to this queue and "
            "with this server up"
        )
    if log.startswith("server:"):
        raise CheckpointError(
            f"the checkpoint was made from a table, and no log of server {each['server']!r} was read since: run it "
            "once with the version that made it"
        )
    queues = {name: QueueAt(queue_id, at) for name, (queue_id, at) in each["queues"].items()}
    return LogState(each["server"], LogAt(*each["at"]) if each["at"] else None, queues, each.get("origin", ""))
