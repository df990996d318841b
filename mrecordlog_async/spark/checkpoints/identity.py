"""Ties a checkpoint to its query.

The file `<checkpoint>/metadata` has the query's id. It is Spark's file, and is written here before Spark would write
it, because a table names the query that owns it (`delta.start`).
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.checkpoints.batches import COMMITS, OFFSETS, newest
from mrecordlog_async.spark.checkpoints.lake import OWN, Lake

METADATA = "metadata"
PARQUET_OUTPUT = f"{OWN}/output"
"""File that a drain of 0.2.0 into Parquet files left in its checkpoint."""

WHERE = "what `mrecordlog lake show` prints as the table's query"
"""Second place of a query's id, apart from its checkpoint."""


class RefusedError(RecordLogError):
    """The job would lose data, or might; nothing was started."""


def refuse_parquet(checkpoint: Lake) -> None:
    """Raise RefusedError if *checkpoint* belongs to a drain into Parquet files, which 0.2.0 had."""
    if checkpoint.read(PARQUET_OUTPUT) is not None:
        raise RefusedError(
            f"{checkpoint.path} belongs to an output of Parquet files, which this version does not write: finish that "
            "drain with 0.2.0, then begin a Delta table with a new output and a new checkpoint"
        )


def query_of(checkpoint: Lake) -> str:
    """Return the id of the query that *checkpoint* belongs to; a new checkpoint gets one.

    Raises:
        RefusedError: the id is missing or damaged, though the checkpoint has batches.
    """
    query = _query(checkpoint)
    if query is None:
        if newest(checkpoint, OFFSETS) >= 0 or newest(checkpoint, COMMITS) >= 0:
            raise RefusedError(
                f'{checkpoint.path}/{METADATA} is missing: restore it with the query\'s id, {{"id":"…"}}; the id is '
                f"{WHERE}"
            )
        query = _new_query(checkpoint)
    return query


def _new_query(checkpoint: Lake) -> str:
    query = str(uuid.uuid4())
    checkpoint.create(METADATA, json.dumps({"id": query}, separators=(",", ":")).encode())
    return _query(checkpoint) or query  # another job may have been first with this checkpoint


def _query(checkpoint: Lake) -> str | None:
    content = checkpoint.read(METADATA)
    if content is None:
        return None
    found = _parsed(content)
    if not isinstance(found.get("id"), str):
        raise RefusedError(
            f'{checkpoint.path}/{METADATA} is damaged: restore it with the query\'s id, {{"id":"…"}}; the id is {WHERE}'
        )
    return str(found["id"])


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
