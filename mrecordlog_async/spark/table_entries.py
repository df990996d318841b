"""The entries of a Delta table's own log: this package's facts in them, and the repair after a power cut.

Nobody relied on what a kill left half written: a drain truncates only behind entries that it has made durable, and
before its own entry it makes those before it durable. So only entries after the newest one of a drain can be torn or
missing. From the first of these on, entries are set aside: the batch runs again. Entries that a whole checkpoint sums
up do not count any more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mrecordlog_async.spark.output import OutputRefusedError
from mrecordlog_async.spark.table_files import ENTRIES, TableFiles, sync_path

MARK = "mrecordlog"
"""The key of this package's facts in the commit information of an entry."""

LAST_CHECKPOINT = "_last_checkpoint"
SIDECARS = "_sidecars"


def entry_name(number: int) -> str:
    """Return the path of an entry below the table."""
    return f"{ENTRIES}/{number:020}.json"


def entry_number(name: str) -> int | None:
    """Return the number of the entry with the file name *name*; None if it is no entry."""
    found = re.fullmatch(r"(\d{20})\.json", name)
    return int(found[1]) if found else None


def commit_info(content: bytes) -> dict[str, Any]:
    """Return what an entry says about its commit; {} if it says nothing or does not parse."""
    with suppress(ValueError, AttributeError):
        for line in content.splitlines():
            info = json.loads(line).get("commitInfo")
            if info is not None:
                return info if isinstance(info, dict) else {}
    return {}


def mark_of(content: bytes) -> dict[str, Any]:
    """Return this package's facts in an entry; {} if it has none."""
    found = commit_info(content).get(MARK)
    return found if isinstance(found, dict) else {}


def transactions_of(content: bytes) -> dict[str, int]:
    """Return the transactions of an entry: application id → version; {} if it does not parse."""
    with suppress(ValueError, AttributeError, KeyError, TypeError):
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
        return {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}
    return {}


def restored_to(content: bytes) -> int | None:
    """Return the version to which an entry restored the table, -1 if only a time is known; None for other entries."""
    info = commit_info(content)
    if info.get("operation") != "RESTORE":
        return None
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        return int(info["operationParameters"]["version"])
    return -1


def wrong_with(content: bytes) -> str | None:
    """Return why *content* is not a whole entry; None if it is one."""
    try:
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
        keys = [key for each in actions for key in each]
    except (ValueError, TypeError):
        return "it does not parse"
    if not actions:
        return "it is empty"
    mark = mark_of(content)
    if "files" not in mark:
        return None
    if keys.count("add") != mark["files"] or ("drain" in mark and keys.count("txn") < 2):
        return "it lacks a part of its batch"
    return None


def repair(files: TableFiles) -> list[str]:
    """Set aside what a power cut left half written in the log of a table; return one sentence for each file.

    Raises:
        NotSyncedError: what is in the page cache could not be synced.
        OutputRefusedError: the newest checkpoint of the table is damaged, and the entries that it sums up are deleted.
    """
    if files.path is None or not Path(files.path, ENTRIES).is_dir():
        return []
    # Pages of a process that was killed are written first; then what is read comes from the medium, not from the cache.
    files.forget_cached(ENTRIES)
    log = Path(files.path, ENTRIES)
    numbers = sorted(number for each in log.iterdir() if (number := entry_number(each.name)) is not None)
    return [*_repair_checkpoints(log, numbers), *_set_torn_aside(log, numbers), *_complete(log, numbers)]


def _set_torn_aside(log: Path, numbers: list[int]) -> Iterator[str]:
    summed_up = max(_checkpoints(log), default=-1)
    later = [number for number in numbers if number > summed_up]
    first, why = None, ""
    for index in range(len(later) - 1, -1, -1):
        content = Path(log, f"{later[index]:020}.json").read_bytes()
        wrong = wrong_with(content)
        if wrong:
            first, why = index, wrong
        elif "drain" in mark_of(content):
            break
        elif _is_gap(log, later[index] - 1):
            first, why = index, "the one before it is missing"
    if first is None:
        return
    for number in reversed(later[first:]):  # newest first: a kill in between leaves no gap
        entry = Path(log, f"{number:020}.json")
        entry.rename(entry.with_name(f".torn.{entry.name}"))
        sync_path(log)
        yield f"version {number} of the table is set aside: after a power failure, {why}"
        numbers.remove(number)


def _is_gap(log: Path, number: int) -> bool:
    """Return whether nothing has what an entry said; others may commit and clean up at this moment."""
    return not Path(log, f"{number:020}.json").exists() and number > max(_checkpoints(log), default=-1)


def _complete(log: Path, numbers: list[int]) -> Iterator[str]:
    """Write an entry without actions if the newest version has only a checkpoint: delta-rs commits after entries."""
    newest = max(_checkpoints(log), default=-1)
    if newest > max(numbers, default=-1):
        entry = Path(log, f"{newest:020}.json")
        info = {"timestamp": round(time.time() * 1_000), "operation": "CHECKPOINT", "operationParameters": {}}
        entry.write_text(json.dumps({"commitInfo": info}) + "\n")
        for each in (entry, log):
            sync_path(each)
        yield f"the entry of version {newest} of the table was lost; its checkpoint has what it said"


def _newest_of_drains(log: Path, numbers: list[int]) -> int | None:
    """Return the number of the newest whole entry of a drain: it is durable, and so are those before it."""
    for number in reversed(numbers):
        content = Path(log, f"{number:020}.json").read_bytes()
        if "drain" in mark_of(content) and not wrong_with(content):
            return number
    return None


def _checkpoints(log: Path) -> set[int]:
    names = (each.name for each in log.iterdir())
    return {int(name[:20]) for name in names if ".checkpoint." in name and name[:20].isdecimal()}


def _repair_checkpoints(log: Path, entries: list[int]) -> Iterator[str]:
    """Remove the newest checkpoints of the table if they cannot be read, and the pointer to them."""
    pointer, found = log / LAST_CHECKPOINT, sorted(_checkpoints(log))
    while found and not _is_readable(log, found[-1]):
        first = found[-2] + 1 if len(found) > 1 else 0
        # Those after the newest entry of a drain may never have been durable, and nobody relied on them.
        last = _newest_of_drains(log, [number for number in entries if number >= first])
        needed = range(first, (entries[-1] if last is None else last) + 1) if entries else ()
        if not needed or not set(needed) <= set(entries):
            raise OutputRefusedError(
                f"the checkpoint of version {found[-1]} in {log} cannot be read, and the entries that it sums up are "
                "deleted: restore the table from a copy, or drain into a new table"
            )
        pointer.unlink(missing_ok=True)
        for each in log.glob(f"{found[-1]:020}.checkpoint.*"):
            each.unlink()
        sync_path(log)
        yield f"the checkpoint of version {found.pop()} of the table cannot be read and is removed"
    if pointer.exists():
        version = None
        with suppress(ValueError, KeyError, TypeError):
            version = int(json.loads(pointer.read_bytes())["version"])
        if version not in found:
            pointer.unlink()
            sync_path(log)
            yield f"{LAST_CHECKPOINT} of the table was half written and is removed"


def _is_readable(log: Path, version: int) -> bool:
    """Return whether all files of the checkpoints of *version* can be read, with those that they name."""
    files = list(log.glob(f"{version:020}.checkpoint.*"))
    parts = [found[2] for each in files if (found := re.search(r"\.(\d{10})\.(\d{10})\.parquet$", each.name))]
    if any(parts.count(of) != int(of) for of in parts):
        return False
    try:
        for each in files:
            for sidecar in _sidecars(each):
                pq.read_table(log / SIDECARS / sidecar)
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
    table = pq.read_table(checkpoint)
    rows = table.column("sidecar").to_pylist() if "sidecar" in table.schema.names else []
    return [each["path"] for each in rows if each is not None]
