"""The raw disk next to a contestant: pwrite and sync on a file whose blocks exist, in one thread.

`python -m tests.benchmarks.compare.raw PATH`, one process for each contestant. Standard input: lines with a number of
bytes and of seconds. Standard output: for each line the latencies, as JSON, of writes and syncs of this many bytes in
this many seconds.

It is written out here, not taken from `tests.benchmarks.raw`, which uses the storage of the log: versions may
differ there.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time

FILE_BYTES = 64 * 1024**2
FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: its fsync does not empty the cache of the disk."""


class RawFile:
    """A file at *path* whose blocks are written when it is opened first."""

    def __init__(self, path: str) -> None:
        self._content = memoryview(os.urandom(FILE_BYTES // 4))
        self._offset = 0
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        written = os.fstat(self._handle).st_size
        while written < FILE_BYTES:
            written += os.pwrite(self._handle, self._content[: FILE_BYTES - written], written)
        os.fsync(self._handle)

    def repeat(self, size: int, seconds: float) -> list[float]:
        """Write and sync *size* bytes for this long, at least once; return the seconds that each took."""
        latencies: list[float] = []
        clock = time.perf_counter
        begun = since = clock()
        while since - begun < seconds or not latencies:
            self._write(size)
            _sync(self._handle)
            now = clock()
            latencies.append(now - since)
            since = now
        return latencies

    def _write(self, size: int) -> None:
        while size:
            offset = self._offset if self._offset < FILE_BYTES else 0
            taken = os.pwrite(self._handle, self._content[: min(size, FILE_BYTES - offset)], offset)
            self._offset = offset + taken
            size -= taken


def main() -> None:
    """Measure once for each line of standard input."""
    file = RawFile(sys.argv[1])
    for line in sys.stdin:
        size, seconds = line.split()
        print(json.dumps(file.repeat(int(size), float(seconds))), flush=True)


def _sync(handle: int) -> None:
    if FULL_SYNC is not None:
        fcntl.fcntl(handle, FULL_SYNC)
    else:
        os.fdatasync(handle)


if __name__ == "__main__":
    main()
