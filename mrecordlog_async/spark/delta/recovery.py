"""Repairs a table at the start of a drain, and before a commit of `lake`: files that a kill left half written.

Nobody relied on any of them yet. The sink returns only when a batch is durable in the table, and what Spark writes is
synced before anything depends on it. So only the newest file of each kind can be half written, or the newest entries of
the table's log, where other writers add as many as they like, and

1. an entry of the table's log that is empty, does not parse, or lacks a part of its batch or change, is set aside: the
   batch runs again, and files are rewritten, or rows dropped, the next time,
2. a checkpoint of the table that cannot be read, and the pointer to it, are removed while the entries that it sums up
   are there: in one file, in several, or one in JSON or Parquet that names others (`_sidecars`),
3. an empty offset or commit of Spark is removed: the batch is planned, or confirmed, again.

All of them are read from the medium: the page cache may show what a failed sync lost.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mrecordlog_async.spark.checkpoints.batches import COMMITS, OFFSETS, SparkBatches, newest
from mrecordlog_async.spark.checkpoints.lake import Lake
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.delta.content import TableError
from mrecordlog_async.spark.delta.entries import MARK, entry_name, entry_numbers
from mrecordlog_async.spark.delta.place import LOG
from mrecordlog_async.spark.rows.row_batches import row_batches

LAST_CHECKPOINT = "_last_checkpoint"
SIDECARS = "_sidecars"


def repair_table(lake: LocalLake) -> list[str]:
    """Set aside what is half written in the log of a table; return one sentence for each file.

    Raises:
        SyncFailedError: what is in the page cache could not be synced.
        TableError: the newest checkpoint of the table is damaged, and the entries that it sums up are deleted.
    """
    if not Path(lake.path, LOG).is_dir():
        return []
    # Pages of a process that was killed are written first; then what is read comes from the medium, not from the cache.
    lake.sync()
    said = []
    numbers = sorted(entry_numbers(lake.path))
    for name in os.listdir(Path(lake.path, LOG)):
        lake.forget_cached(f"{LOG}/{name}")
    # From the newest one back to one that is whole: a drain that stores a batch makes the entries before it durable.
    while numbers and (wrong := wrong_with_entry(lake.read(f"{LOG}/{entry_name(numbers[-1])}") or b"")):
        _set_aside(lake, entry_name(numbers[-1]))
        said.append(f"version {numbers[-1]} of the table was half written ({wrong}) and is set aside")
        numbers.pop()
    said += _repair_checkpoints(lake, numbers)
    return said


def wrong_with_entry(content: bytes) -> str | None:
    """Return why *content* is not a whole entry of a table's log; None if it is one."""
    try:
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
        marks = [(each["commitInfo"] or {}).get(MARK) for each in actions if "commitInfo" in each]
    except (ValueError, AttributeError, TypeError):
        return "it does not parse"
    if not actions:
        return "it is empty"
    if not marks:
        return None  # of another writer: this package's entries begin with it
    mark = marks[0]
    if not isinstance(mark, dict):
        return None
    if "actions" in mark:  # of `upkeep`
        changed = sum("add" in each or "remove" in each for each in actions)
        return None if changed == mark["actions"] else "it lacks a part of its change"
    if "batch" not in mark:
        return None
    transactions = {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}
    files = sum("add" in each for each in actions)
    if transactions.get(mark["query"]) != mark["batch"] or len(transactions) < 2 or files != mark["files"]:
        return "it lacks a part of its batch"
    return None


def _set_aside(lake: LocalLake, name: str) -> None:
    """Keep an entry under a name that no reader of the table knows."""
    # The copy is durable before the entry goes: a kill in between leaves both, and the next start does this again.
    lake.write(f"{LOG}/.torn.{name}", lake.read(f"{LOG}/{name}") or b"")
    lake.remove(LOG, [name])


def _repair_checkpoints(lake: LocalLake, entries: list[int]) -> list[str]:
    """Remove the newest checkpoints of the table if they cannot be read, and the pointer to them."""
    said = []
    pointer = lake.read(f"{LOG}/{LAST_CHECKPOINT}")  # first: another program writes a checkpoint before its pointer
    names = os.listdir(Path(lake.path, LOG))
    found = sorted({int(name[:20]) for name in names if ".checkpoint." in name and name[:20].isdecimal()})
    while found and not _is_readable(lake, found[-1]):
        _refuse_summed_up(lake, found, entries)
        parts = [name for name in names if name.startswith(f"{found[-1]:020}.checkpoint.")]
        lake.remove(LOG, [LAST_CHECKPOINT, *parts])
        said.append(f"the checkpoint of version {found.pop()} of the table cannot be read and is removed")
        pointer = None
    if pointer is not None and _version(pointer) not in found:
        lake.remove(LOG, [LAST_CHECKPOINT])
        said.append(f"{LAST_CHECKPOINT} of the table was half written and is removed")
    return said


def _refuse_summed_up(lake: LocalLake, checkpoints: list[int], entries: list[int]) -> None:
    """Raise TableError unless the table can be read without its newest checkpoint."""
    first = checkpoints[-2] + 1 if len(checkpoints) > 1 else 0
    if not entries or not set(range(first, entries[-1] + 1)) <= set(entries):
        raise TableError(
            f"the checkpoint of version {checkpoints[-1]} of {lake.path} cannot be read, and the entries that it sums "
            "up are deleted: restore the table from a copy, or use a new table and a new checkpoint"
        )


def _is_readable(lake: LocalLake, version: int) -> bool:
    """Return whether all files of the checkpoints of *version* can be read, with those that they name."""
    log = Path(lake.path, LOG)
    try:
        for name in os.listdir(log):
            if name.startswith(f"{version:020}.checkpoint."):
                for sidecar in _sidecars(log / name):
                    lake.forget_cached(f"{LOG}/{SIDECARS}/{sidecar}")
                    _read_parquet(log / SIDECARS / sidecar)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return False
    return True


def _sidecars(checkpoint: Path) -> list[str]:
    """Read a checkpoint; return the names of the files that it names. Raises for one that is not whole."""
    if checkpoint.suffix == ".json":
        actions = [json.loads(line) for line in checkpoint.read_bytes().splitlines()]
        if not any("checkpointMetadata" in each for each in actions):
            raise ValueError(f"{checkpoint} is cut")
        return [each["sidecar"]["path"] for each in actions if "sidecar" in each]
    if checkpoint.suffix != ".parquet":
        return []
    return [row["path"] for row in _read_parquet(checkpoint, "sidecar") if row is not None]


def _read_parquet(path: Path, kept: str = "") -> list[Any]:
    """Read all of a Parquet file; return the values of the column *kept*, if it has that."""
    found = list[Any]()
    with pq.ParquetFile(path) as file:
        for batch in row_batches(file):
            found += batch.column(kept).to_pylist() if kept in batch.schema.names else []
    return found


def _version(pointer: bytes) -> int | None:
    with suppress(ValueError, KeyError, TypeError):
        return int(json.loads(pointer)["version"])
    return None


def repair_checkpoint(checkpoint: Lake) -> list[str]:
    """Remove the newest offset or commit in Spark's checkpoint if it is half written; return one sentence for each.

    Raises:
        SyncFailedError: what is in the page cache could not be synced.
    """
    checkpoint.sync()
    batches, said = SparkBatches(checkpoint), []
    for directory in (COMMITS, OFFSETS):  # a commit without its offset would be a batch that nobody can plan again
        number = newest(checkpoint, directory)
        if number < 0:
            continue
        checkpoint.forget_cached(f"{directory}/{number}")
        whole = batches.is_committed(number) if directory == COMMITS else batches.end(number) is not None
        if whole:
            checkpoint.remove(directory, [f".{number}.crc"])  # may be half written, and Spark reads without it
        else:
            checkpoint.remove(directory, [str(number)])
            said.append(f"{directory}/{number} in the checkpoint was half written and is removed")
    return said
