"""Describes the table of drains for people and programs: its size, and from which log each position comes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.delta_output import MOVED, OWN, OWNER
from mrecordlog_async.spark.delta_reasons import reason_of
from mrecordlog_async.spark.state import DrainState
from mrecordlog_async.spark.table_entries import MARK
from mrecordlog_async.spark.table_files import TableFiles


class TableNotShownError(RecordLogError):
    """There is no table, or it cannot be read."""


@dataclass(frozen=True, slots=True)
class StoredLog:
    """How far one log is stored. queues: name → the queue's id, and the first position that is not stored."""

    server: str
    queues: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class StoredBy:
    """What one drain has stored. batch: the number of its last one. logs: by the log's id."""

    batch: int
    logs: dict[str, StoredLog]


@dataclass(frozen=True, slots=True)
class Shown:
    """The newest version of a table.

    Attributes:
        version: Its number.
        rows: How many it has.
        files: Its data files.
        bytes: Their size.
        partition_by: The columns by which it is partitioned.
        partitions: How many combinations of their values it has.
        columns: Column → type.
        drains: Name of a drain → what that has stored.
        earlier: The query of a drain of an earlier version that the table belongs to; None for none.
    """

    version: int
    rows: int
    files: int
    bytes: int
    partition_by: list[str]
    partitions: int
    columns: dict[str, str]
    drains: dict[str, StoredBy]
    earlier: str | None


def show(files: TableFiles) -> Shown:
    """Describe the newest version of a table, from its log alone. Raises TableNotShownError, StateError."""
    if files.is_misread:
        raise TableNotShownError(
            f"delta-rs would look for the table somewhere else than {files.path}: choose a path without % and \\"
        )
    try:
        return _shown(files, DeltaTable(files.uri, storage_options=files.options))
    except (DeltaError, OSError) as error:
        raise TableNotShownError(f"the table at {files.address} cannot be used: {reason_of(error)}") from error


def _shown(files: TableFiles, table: DeltaTable) -> Shown:
    actions, metadata = pa.table(table.get_add_actions()), table.metadata()
    owner = metadata.configuration.get(OWNER, MOVED)
    by = metadata.partition_columns
    return Shown(
        table.version(),
        (pc.sum(actions.column("num_records")).as_py() or 0) - _deleted(table),
        actions.num_rows,
        pc.sum(actions.column("size_bytes")).as_py() or 0,
        by,
        len({json.dumps(each, default=str) for each in actions.column("partition").to_pylist()}) if by else 0,
        {each.name: _type_name(each.type) for each in table.schema().fields},
        dict(_drains(files, table)),
        None if owner == MOVED else owner,
    )


def _drains(files: TableFiles, table: DeltaTable) -> list[tuple[str, StoredBy]]:
    found = []
    for name in sorted(files.directories(OWN)):
        content, number = None, None
        while content is None:
            newer = table.transaction_version(f"{MARK}/{name}/positions")
            if newer == number:
                break
            content, number = files.read(f"{OWN}/{name}/{newer}.json"), newer
            if content is None:  # a drain has committed since the table was loaded, and removed them
                table.update_incremental()
        if content is not None:
            state = DrainState.decode(content)
            logs = {
                log: StoredLog(each.server, {queue: (at.id, at.next) for queue, at in each.queues.items()})
                for log, each in state.logs.items()
            }
            found.append((name, StoredBy(state.batch, logs)))
    return found


def _deleted(table: DeltaTable) -> int:
    """Return how many rows of the files are deleted by deletion vectors."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return 0
    kept = pa.table(table.deletion_vectors()).column("selection_vector").combine_chunks().flatten()
    return len(kept) - (pc.sum(kept).as_py() or 0)


def _type_name(kind: Any) -> str:
    """Return a simple type as Delta names it, and any other as its JSON."""
    found = json.loads(kind.to_json())
    return found if isinstance(found, str) else str(kind.to_json())
