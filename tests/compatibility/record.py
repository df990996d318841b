"""Keep what this version writes and promises for later versions: `python -m tests.compatibility.record 0.2.0`.

Run it once for a release, and commit data/VERSION. Never change it afterwards: users have such logs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.maintenance import snapshot

from .contents import contents, write
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


def main(version: str) -> None:
    target = DATA / version
    target.mkdir(parents=True)
    with TemporaryDirectory() as place:
        log, copy = Path(place, "log"), Path(place, "snapshot")
        held = asyncio.run(make_log(log))
        snapshot(log, copy, link=False)
        with tarfile.open(target / "log.tar.gz", "w:gz") as archive:
            archive.add(log, "log")
            archive.add(copy, "snapshot")
    (target / "contents.json").write_text(json.dumps(held, ensure_ascii=False) + "\n")
    (target / "surface.json").write_text(json.dumps(surface(), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
