"""A new checkpoint for a table whose checkpoint is lost: reading continues after what the table holds.

A queue's next position follows the highest position that the table has of it, because batches hold each queue's records
in order. The steps, which all run again after a kill:

1. a new query id in `metadata`
2. the table's owner: this resume. From here on no drain can store a batch, not even the old one if it still runs
3. the positions, as batch 0 in `offsets/0`
4. batch 0 of the new query in the table, without rows
5. `commits/0`
6. the table's owner: the new query

A table knows a log by the name that its server had. Ids of queues are drawn at random for each log, so rows of one id
under two names are of one queue, whose server was renamed.
"""

from __future__ import annotations

import json
from typing import Any

from deltalake import DeltaTable

from mrecordlog_async.spark.checkpoints.batches import COMMITS, OFFSETS, newest
from mrecordlog_async.spark.checkpoints.identity import RefusedError, query_of
from mrecordlog_async.spark.checkpoints.lake import Lake
from mrecordlog_async.spark.delta.changes import OWNER, RESUMING, refuse_mapped_columns
from mrecordlog_async.spark.delta.confirm import COMMITTED
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.table import NO_HOOKS, DrainTable, NewBatch, columns_of
from mrecordlog_async.spark.delta.upkeep import open_table, query_rows, repair_log
from mrecordlog_async.spark.settings.offset import Offset, named

SPARK_OFFSET = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
"""Second line of Spark's offset file. Settings that it does not name are those of the session."""


def resume(place: TablePlace, checkpoint: Lake) -> dict[str, dict[str, int]]:
    """Make *checkpoint*, which must be new, continue after what the table at *place* holds.

    Returns:
        server → queue → the position at which reading continues.

    Raises:
        TableError: there is no table, or it uses column mapping.
        RefusedError: the checkpoint has batches already, the table is not one of a drain, or another resume took it.
        SyncFailedError, WriteFailedError: the disk failed.
    """
    repair_log(place)
    table = open_table(place)
    owner = table.metadata().configuration.get(OWNER)
    if owner is None or "queue_id" not in columns_of(table.schema()):
        raise RefusedError(f"the table at {place.address} was not created by a drain")
    query = query_of(checkpoint)
    if newest(checkpoint, COMMITS) >= 0 and owner != RESUMING + query:
        raise RefusedError(f"{checkpoint.path} has batches already: name a new directory")
    refuse_mapped_columns(table, place.address)  # as each batch would be, but before the table is changed
    _own(place, table, RESUMING + query)
    found = positions(place)
    content = "\n".join(("v1", json.dumps(SPARK_OFFSET), json.dumps(found.encode())))
    checkpoint.write(f"{OFFSETS}/0", content.encode())
    checkpoint.sync()
    DrainTable(place).store(NewBatch(query, 0, [], []), table.schema(), table.metadata().partition_columns)
    checkpoint.write(f"{COMMITS}/0", COMMITTED)
    _finish(place, query)
    return found.next_positions()


def positions(place: TablePlace) -> Offset:
    """Return where each queue continues after what the table at *place* holds."""
    found: dict[tuple[str, int], tuple[int, str]] = {}
    for row in _ends(place):
        key, end = (row["queue"], row["queue_id"]), (row["position_max"] + 1, row["server"])
        found[key] = max(found.get(key, end), end)
    checkpoint = Offset()
    # A queue that was recreated has rows of several incarnations. Ids of a log only grow: the last one counts.
    for (queue, queue_id), (position, server) in sorted(found.items()):
        # Which log it is shows when the server is listed: a table knows it by its name only.
        checkpoint.positions.setdefault(named(server), {})[queue] = [queue_id, position]
        checkpoint.servers[named(server)] = server
    return checkpoint


def _ends(place: TablePlace) -> list[dict[str, Any]]:
    """Return the highest position of each incarnation of each queue, reading four columns of the table.

    Rows that lack one of them are of other writers: a drain has read none of their records.
    """
    found = query_rows(
        open_table(place),
        "select server, queue, queue_id, max(position) as position_max from lake "
        "where server is not null and queue is not null and queue_id is not null and position is not null "
        "group by server, queue, queue_id",
    )
    return list(found.read_all().to_pylist())


def _finish(place: TablePlace, query: str) -> None:
    """Give the table to *query*, unless another resume has taken it since."""
    table = open_table(place)
    if table.metadata().configuration.get(OWNER) != RESUMING + query:
        raise RefusedError(f"another `mrecordlog lake resume` took the table at {place.address}: use its checkpoint")
    _own(place, table, query)


def _own(place: TablePlace, table: DeltaTable, owner: str) -> None:
    """Set the owner of *table*, durably. Raises DeltaError if another owner was set since it was loaded."""
    table.alter.set_table_properties({OWNER: owner}, raise_if_not_exists=False, post_commithook_properties=NO_HOOKS)
    place.sync()
