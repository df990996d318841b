"""What an earlier release wrote can be read, and what it promised still exists."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import MultiRecordLog, QueueOptions
from mrecordlog_async.engine.inspection import Inspection
from mrecordlog_async.maintenance.verify import verify
from tests.compatibility.contents import LARGE, LITTLE_MEMORY, contents, large_record, on_disk_too
from tests.compatibility.record import DATA
from tests.compatibility.removed import CHANGELOG, INSPECTION, REMOVED, is_removed, table
from tests.compatibility.states import WRITE
from tests.compatibility.states import read as read_state
from tests.compatibility.surface import surface

RELEASES = sorted(path.name for path in DATA.iterdir())
PROMISED = [release for release in RELEASES if (DATA / release / "surface.json").exists()]
"""Those whose names are kept: they are recorded last, with the release itself."""
LARGE_LOGS = [release for release in RELEASES if (DATA / release / "large_log.tar.gz").exists()]
"""0.2.0 could not write one."""
WITH_STATES = [release for release in RELEASES if (DATA / release / "states.tar.xz").exists()]
KINDS = ("python", "http", "problem codes", "commands", "exit codes", "settings", "metrics", "spark options", "columns")


@pytest.fixture(scope="module")
def now() -> dict[str, list[str]]:
    return surface()


@pytest.mark.parametrize("release", PROMISED)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_a_release_promised_is_missing(release: str, kind: str, now: dict[str, list[str]]) -> None:
    """A name may be added at any time. Removing one breaks programs, scripts or dashboards of users."""
    promised = surface_of(release)[kind]
    assert promised
    missing = sorted(line for line in set(promised) - set(now[kind]) if not is_removed(line))
    assert not missing, f"release {release} promised {missing}: docs/compatibility.md says how a name may be removed"


def test_each_removed_name_existed_and_is_missing_now(now: dict[str, list[str]]) -> None:
    """The table has no name that no release had, and none that still works."""
    promised = {line for release in PROMISED for lines in surface_of(release).values() for line in lines}
    today = {line for lines in now.values() for line in lines}
    for name in REMOVED:
        assert any(is_removed(line) for line in promised if line.startswith(name)), f"no release had {name}"
        assert name not in today, f"{name} still exists"


def test_the_changelog_has_the_table_of_removed_names() -> None:
    """Each old name with what to use instead, as `python -m tests.compatibility.removed` writes it."""
    assert table() in CHANGELOG.read_text()


def test_what_moved_to_inspection_has_the_same_name_there() -> None:
    """The table of the changelog says so of most names that left the log."""
    moved = [name.rpartition(".")[2] for name, instead in REMOVED.items() if instead == INSPECTION]
    assert moved
    assert [name for name in moved if not hasattr(Inspection, name)] == []


def surface_of(release: str) -> dict[str, list[str]]:
    """Return kind → lines of the names that *release* promised."""
    names: dict[str, list[str]] = json.loads((DATA / release / "surface.json").read_text())
    return names


def unpack(release: str, directory: Path) -> dict[str, Any]:
    """Put the log and the snapshot of *release* into *directory*. Return what they hold."""
    with tarfile.open(DATA / release / "log.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return held_by(release)


def held_by(release: str) -> dict[str, Any]:
    """Return what the log of *release* holds. Options that came later have their defaults in it."""
    found: dict[str, Any] = json.loads((DATA / release / "contents.json").read_text())
    for queue in found["queues"].values():
        queue["options"] = asdict(QueueOptions(**queue["options"]))
    return found


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kept", ["log", "snapshot"])
async def test_a_log_of_a_release_opens_with_all_that_it_held(release: str, kept: str, tmp_path: Path) -> None:
    """Queues, ids, positions, payloads, times, options, seals, consumers and rules are the same; appends go on."""
    expected = await asyncio.to_thread(unpack, release, tmp_path)
    assert (await asyncio.to_thread(verify, tmp_path / kept)).ok
    async with MultiRecordLog.open(tmp_path / kept) as log:
        assert json.loads(json.dumps(contents(log))) == expected
        assert await log.append("empty", b"more") == expected["queues"]["empty"]["next"]
    async with MultiRecordLog.open(tmp_path / kept) as log:
        assert [record.payload for record in log.range("empty")][-1] == b"more"


@pytest.mark.parametrize("release", LARGE_LOGS)
@pytest.mark.parametrize("runs", ["gathered files of that release", "made again"])
async def test_a_log_larger_than_memory_opens_with_all_that_it_held(release: str, runs: str, tmp_path: Path) -> None:
    """Every record is read, from the gathered files that it came with, and without them; appends go on."""
    with tarfile.open(DATA / release / "large_log.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    files = sorted((tmp_path / "log").glob("*.runs"))
    assert files
    if runs == "made again":
        for file in files:
            file.unlink()
    async with MultiRecordLog.open(tmp_path / "log", limits=LITTLE_MEMORY) as log:
        assert {queue: log.memory_first(queue) > log.first_position(queue) for queue in LARGE} == dict.fromkeys(
            LARGE, True
        )
        assert await on_disk_too(log) == {
            queue: [[n, large_record(queue, n)[:10].decode()] for n in range(150 if queue == "a" else 0, 1_000)]
            for queue in LARGE
        }
        assert await log.append("a", b"more") == 1_000


@pytest.mark.parametrize("release", RELEASES)
async def test_a_dump_of_a_release_loads_with_all_that_it_held(release: str, tmp_path: Path) -> None:
    """Positions, payloads, options, seals, consumers and rules are the same; ids, epochs and times are new."""
    held = held_by(release)
    lines = tmp_path / "dump.ndjson"
    lines.write_bytes(gzip.decompress((DATA / release / "dump.ndjson.gz").read_bytes()))
    load = [sys.executable, "-m", "mrecordlog_async", "load", str(tmp_path / "wal"), str(lines)]
    await asyncio.to_thread(subprocess.run, load, check=True, stdout=subprocess.DEVNULL)
    async with MultiRecordLog.open(tmp_path / "wal") as log:
        loaded = json.loads(json.dumps(contents(log)))
    assert loaded["rules"] == held["rules"]
    assert _as_dumped(loaded["queues"]) == _as_dumped(held["queues"])


def _as_dumped(queues: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a dump does not have. A consumer before the first record is loaded at that record."""
    for queue in queues.values():
        del queue["id"], queue["began"]
        for consumer in queue["consumers"].values():
            del consumer["epoch"]
            consumer["position"] = max([consumer["position"], *(record[0] for record in queue["records"][:1])])
        queue["records"] = [record[:3] for record in queue["records"]]
    return queues


@pytest.mark.parametrize("release", WITH_STATES)
@pytest.mark.parametrize("state", WRITE)
async def test_a_log_opens_in_each_state_in_which_a_process_of_a_release_left_it(
    release: str, state: str, tmp_path: Path
) -> None:
    """Killed, torn, idle, recycled, with files of records that left memory: what that release found in it is there."""
    with tarfile.open(DATA / release / "states.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((DATA / release / "states.json").read_text())[state]
    assert json.loads(json.dumps(await read_state(state, tmp_path / state))) == expected
    assert json.loads(json.dumps(await read_state(state, tmp_path / state))) == expected, "after a close"
