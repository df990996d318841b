"""The entries of a table's log on a disk, and this package's facts in them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.delta.place import LOG

MARK = "mrecordlog"
"""The key of this package's facts in an entry of the table's log: {"query", "batch", "records"}."""


def entry_name(number: int) -> str:
    """Return the name of an entry of a table's log."""
    return f"{number:020}.json"


def entry_numbers(path: str) -> list[int]:
    """Return the numbers of the entries in the log of the table at *path*."""
    names = os.listdir(Path(path, LOG)) if Path(path, LOG).is_dir() else []
    return [int(name[:20]) for name in names if len(name) == 25 and name.endswith(".json") and name[:20].isdecimal()]


WRITTEN_AGAIN = 3
"""Newest entries that are written again to be durable; older ones are only synced."""


def sync_entries(lake: LocalLake, numbers: Sequence[int], own: int | None = None) -> None:
    """Make entries of a table's log durable, oldest first, which other writers may not have synced.

    numbers: in order. own: one that is written again, however many are newer: nothing else says that its sync failed.

    Raises:
        SyncFailedError, WriteFailedError: the disk failed.
    """
    newest = numbers[-WRITTEN_AGAIN:]
    if len(numbers) > len(newest):
        lake.sync()
    for number in newest if own is None or own in newest else [own, *newest]:
        content = lake.read(f"{LOG}/{entry_name(number)}")
        if content is not None:  # otherwise it has been summed up and deleted since
            write_again(lake, number, content)


def write_again(lake: LocalLake, number: int, content: bytes) -> None:
    """Make an entry durable that another writer may not have synced. Raises WriteFailedError, SyncFailedError.

    Its time stays: readers take it for that of the version.
    """
    name = f"{LOG}/{entry_name(number)}"
    entry = Path(lake.path, name)
    written = entry.stat().st_mtime_ns
    lake.write(name, content)
    os.utime(entry, ns=(written, written))


def mark_of(content: bytes) -> dict[str, Any]:
    """Return this package's facts in an entry of a table's log; {} if the entry has none or does not parse."""
    found = commit_info(content).get(MARK)
    return found if isinstance(found, dict) else {}


def paths_of(content: bytes) -> tuple[set[str], set[str]]:
    """Return the paths of the files that an entry removes, and of those that it adds, as it spells them."""
    removed, added = set[str](), set[str]()
    for line in content.splitlines():
        if b'"path"' in line:
            action = json.loads(line)
            removed |= {action["remove"]["path"]} if "remove" in action else set()
            added |= {action["add"]["path"]} if "add" in action else set()
    return removed, added


def commit_info(content: bytes) -> dict[str, Any]:
    """Return what an entry says about its commit; {} if it says nothing or does not parse."""
    try:
        for line in content.splitlines():
            info = json.loads(line).get("commitInfo")
            if info is not None:
                return info if isinstance(info, dict) else {}
    except (ValueError, AttributeError):
        pass
    return {}
