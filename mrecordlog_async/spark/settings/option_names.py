"""The names of the options: which exist, which Spark adds, and what a wrong one may have meant. Pure.

An unknown option is refused with the nearest known name: a misspelt limit or `truncate` must not be ignored silently.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from mrecordlog_async.spark.settings.option_values import OptionError, is_token_of_one

_NAMES = {
    name.lower(): name
    for name in (
        "servers",
        "path",
        "subscribe",
        "subscribePattern",
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "timeZone",
        "maxRecordsPerTrigger",
        "minRecordsPerTrigger",
        "maxTriggerDelay",
        "maxBytesPerTrigger",
        "minPartitions",
        "maxRecordsPerPartition",
        "failOnDataLoss",
        "failOnServerDown",
        "truncate",
        "syncDirs",
        "consumer",
        "consumerOwner",
        "takeOver",
        "sharedMarker",
        "readAgain",
        "acceptWentBack",
        "forget",
        "pushdown",
        "payload",
        "queue",
        "createQueues",
        "token",
        "timeout",
        "retries",
        "serverWait",
        "parallelism",
    )
}

_SPARK_OWN = frozenset({"checkpointlocation", "queryname", "triggeravailablenow", "asyncprogresstrackingenabled"})
"""Options that Spark's own reader and writer pass on."""

_TABLE_OPTION = "option."
"""Spark's prefix for the options of `CREATE TABLE … OPTIONS`, among owner, provider and other table properties."""

_ELSEWHERE = {
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "minoffsetspertrigger": "minRecordsPerTrigger",
    "assign": "subscribe",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "topic": "queue",
    "topics": "subscribe",
    "stream": "queue",
    "kafka.bootstrap.servers": "servers",
    "url": "servers",
}
"""The names of the same options in other sources."""


def without_table_properties(found: dict[str, str]) -> dict[str, str]:
    """Return *found*, without the properties of a table if Spark passed them along with its options."""
    if "provider" not in found or "owner" not in found:
        return found
    given = {name.removeprefix(_TABLE_OPTION): text for name, text in found.items() if name.startswith(_TABLE_OPTION)}
    return given | ({"path": found["path"]} if "path" in found else {})


def refuse_unknown_options(found: Mapping[str, str]) -> None:
    """Raise OptionError for the first name that neither this data source nor Spark knows."""
    known = _NAMES.keys() | _SPARK_OWN
    unknown = next((name for name in found if name not in known and not is_token_of_one(name)), None)
    if unknown is None:
        return
    if unknown == "paths":
        raise OptionError("load() was given several directories; load each one, and combine the frames with union()")
    near = difflib.get_close_matches(unknown, _NAMES, n=1)
    meant = _ELSEWHERE.get(unknown) or (_NAMES[near[0]] if near else None)
    hint = f"; did you mean {meant}?" if meant else ""
    raise OptionError(f"unknown option {unknown!r}{hint}")
