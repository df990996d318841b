"""Takes the positions of a drain of an earlier version, once: from its checkpoint of Spark into its table.

What counts is the last batch that is in the table, which a transaction under the query's id says. A batch that was
begun and is not in the table is forgotten: it is planned anew.
"""

from __future__ import annotations

import json

from deltalake import DeltaTable

from mrecordlog_async.spark.offsets import CheckpointError, logs_of
from mrecordlog_async.spark.output import OutputRefusedError
from mrecordlog_async.spark.state import DrainState
from mrecordlog_async.spark.table_changes import newest_file
from mrecordlog_async.spark.table_entries import commit_info, entry_name, mark_of, restored_to
from mrecordlog_async.spark.table_files import TableFiles

PARQUET_OUTPUT = "_mrecordlog/output"
"""File that a drain of 0.2.0 into Parquet files left in its checkpoint."""

GIVEN_COLUMNS = frozenset(("_rest", "error"))
"""Columns that only `--schema` of earlier versions made."""


def earlier_state(table: DeltaTable, files: TableFiles, checkpoint: TableFiles, owner: str) -> DrainState:
    """Return what *table* has of its logs, as its checkpoint says.

    Args:
        table: the table of the earlier drain.
        files: where it is.
        checkpoint: the directory of Spark.
        owner: the id of the query that the table belongs to.

    Raises:
        OutputRefusedError: the checkpoint is not the one of the table, or cannot be read.
    """
    if checkpoint.address.startswith(("hdfs:", "viewfs:")):
        raise OutputRefusedError(
            f"--migrate-from {checkpoint.address}: copy the checkpoint to a disk first, with `hdfs dfs -get`, and "
            "name that"
        )
    if checkpoint.read(PARQUET_OUTPUT) is not None:
        raise OutputRefusedError(
            f"{checkpoint.address} belongs to an output of Parquet files, which this version does not write: finish "
            "that drain with 0.2.0, then begin a Delta table with a new output"
        )
    query = _query(checkpoint)
    if query != owner:
        raise OutputRefusedError(
            f"{checkpoint.address} is the checkpoint of the query {query}, and the table belongs to {owner}: name the "
            "checkpoint of that drain"
        )
    batch = table.transaction_version(query)
    if batch is None:
        return DrainState(owner=query)
    _refuse_restored(table, files, query, batch)
    lines = (checkpoint.read(f"offsets/{batch}") or b"").decode().split("\n")
    try:
        logs = logs_of(json.loads(lines[2]))
    except CheckpointError as error:
        raise OutputRefusedError(str(error)) from None
    except (IndexError, ValueError) as error:
        raise OutputRefusedError(
            f"{checkpoint.address}/offsets/{batch} is missing or damaged, and batch {batch} is the last one in the "
            f"table ({error!r}): name the newest checkpoint of the drain"
        ) from None
    return DrainState(logs=logs, owner=query, witness=newest_file(table), rows_at=table.version())


def _query(checkpoint: TableFiles) -> str:
    try:
        return str(json.loads(checkpoint.read("metadata") or b"")["id"])
    except (ValueError, KeyError, TypeError):
        raise OutputRefusedError(
            f"{checkpoint.address} is no checkpoint of a drain: its file metadata is missing or damaged"
        ) from None


def _refuse_restored(table: DeltaTable, files: TableFiles, query: str, batch: int) -> None:
    """Raise OutputRefusedError if the table was restored after its last batch, as far as its entries say."""
    for number in range(table.version(), -1, -1):
        content = files.read(entry_name(number))
        if content is None:
            return
        mark = mark_of(content)
        if (mark.get("query"), mark.get("batch")) == (query, batch):
            return
        if restored_to(content) is not None:
            raise OutputRefusedError(
                f"{files.address} was restored after batch {batch}, the last one of its drain "
                f"({commit_info(content).get('operationParameters')}): drain into a new table"
            )


def refuse_columns(table: DeltaTable, given: frozenset[str], address: str) -> None:
    """Raise OutputRefusedError for a table whose rows this drain would not make: only a function gives such columns."""
    names = {each.name for each in table.schema().fields}
    if ("payload" not in names or names & GIVEN_COLUMNS) and not names <= given:
        raise OutputRefusedError(
            f"{address} has columns that --schema and --no-payload of an earlier version made: continue it with a "
            f"--transform that gives every one of them ({', '.join(sorted(names))}), or drain into a new table. "
            "Nothing was truncated"
        )
