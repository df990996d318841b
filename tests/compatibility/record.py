"""Keep what this version writes and promises for later versions: `python -m tests.compatibility.record 0.2.0`.

Run it once for a release, and commit data/VERSION. Never change it afterwards: users have such logs. Until the release
is published, delete a file of it and run this again to keep that part as it is now.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.maintenance.snapshot import snapshot

from .contents import LITTLE_MEMORY, contents, write, write_more_than_memory
from .pipeline import PLACE, make_pipeline, make_tables, rename_place
from .states import WRITE
from .states import read as read_state
from .surface import surface

DATA = Path(__file__).parent / "data"
SEGMENT_BYTES = 128 << 10


async def make_log(directory: Path) -> dict[str, object]:
    """Write a log of several segments, close it and open it again, and write on. Return its contents."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await write(log)
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await log.append("empty", b"no longer")
        return contents(log)


def unpacked(release: str, place: Path) -> Path:
    """Unpack what the pipeline of *release* left, and return *place*, which its files name now."""
    with tarfile.open(DATA / release / "pipeline.tar.gz") as archive:
        archive.extractall(place, filter="data")
    rename_place(place, PLACE, str(place))
    return place


def keep_log(target: Path) -> None:
    """Keep a log, a snapshot of it, and what they hold."""
    with TemporaryDirectory() as place:
        log, copy = Path(place, "log"), Path(place, "snapshot")
        held = asyncio.run(make_log(log))
        snapshot(log, copy, link=False)
        _pack(Path(place), target / "log.tar.gz")
    (target / "contents.json").write_text(json.dumps(held, ensure_ascii=False) + "\n")


async def make_large_log(directory: Path) -> None:
    """Write a log that is larger than its memory: some segments have a gathered file next to them."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, limits=LITTLE_MEMORY) as log:
        await write_more_than_memory(log)
    assert any(directory.glob("*.runs"))


def keep_large_log(target: Path) -> None:
    """Keep a log that is larger than its memory."""
    with TemporaryDirectory() as place:
        asyncio.run(make_large_log(Path(place, "log")))
        _pack(Path(place), target / "large_log.tar.gz")


def keep_dump(target: Path) -> None:
    """Keep what `mrecordlog dump` prints of the log that was kept."""
    with TemporaryDirectory() as place:
        with tarfile.open(target / "log.tar.gz") as archive:
            archive.extractall(place, filter="data")
        command = [sys.executable, "-m", "mrecordlog_async", "dump", f"{place}/log"]
        lines = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    (target / "dump.ndjson.gz").write_bytes(gzip.compress(lines))


def keep_pipeline(target: Path) -> None:
    """Keep what drains and a stream leave. Starts Spark three times."""
    with TemporaryDirectory() as place:
        make_pipeline(Path(place))
        _pack(Path(place), target / "pipeline.tar.gz")


def keep_tables(target: Path) -> None:
    """Keep what drains that parse payloads leave. Starts Spark twice."""
    with TemporaryDirectory() as place:
        make_tables(Path(place))
        _pack(Path(place), target / "tables.tar.xz")


def keep_states(target: Path) -> None:
    """Keep logs in the states in which a process may leave them, and what they hold."""
    with TemporaryDirectory() as written, TemporaryDirectory() as opened:
        for state in WRITE:
            subprocess.run([sys.executable, "-m", f"{__package__}.states", state, f"{written}/{state}"], check=True)
        _pack(Path(written), target / "states.tar.xz")
        shutil.copytree(written, opened, dirs_exist_ok=True)
        held = {state: asyncio.run(read_state(state, Path(opened, state))) for state in WRITE}
    (target / "states.json").write_text(json.dumps(held, ensure_ascii=False) + "\n")


def keep_surface(target: Path) -> None:
    """Keep the names that the release promises."""
    (target / "surface.json").write_text(json.dumps(surface(), indent=1) + "\n")


PARTS = {
    "log.tar.gz": keep_log,
    "large_log.tar.gz": keep_large_log,
    "dump.ndjson.gz": keep_dump,
    "pipeline.tar.gz": keep_pipeline,
    "tables.tar.xz": keep_tables,
    "states.tar.xz": keep_states,
    "surface.json": keep_surface,
}


def _pack(directory: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:xz" if archive.suffix == ".xz" else "w:gz") as packed:
        for path in sorted(directory.iterdir()):
            packed.add(path, path.name)


def main(version: str, but: list[str]) -> None:
    """Make the parts that are missing."""
    target = DATA / version
    target.mkdir(exist_ok=True)
    for name, keep in PARTS.items():
        if not (target / name).exists() and name not in but:
            keep(target)


def _version(text: str) -> str:
    if re.fullmatch(r"\d+\.\d+\.\d+", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a version like 0.2.0")
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", type=_version, metavar="VERSION", help="the version, like 0.2.0")
    parser.add_argument("--but", nargs="*", default=[], choices=PARTS, help="parts to leave out, until they are final")
    arguments = parser.parse_args()
    main(arguments.version, arguments.but)
