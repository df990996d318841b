"""The ceiling: payloads joined, written and synced behind a bare group commit.

No names, no positions, no bound, nothing that a reader could find records with. What remains is the cost of coroutines
that wait for a thread and of the disk: no log that answers coroutines can be faster than this.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor


class BareFile:
    """A file in a new directory."""

    def __init__(self, directory: str) -> None:
        os.mkdir(directory)
        self._path = os.path.join(directory, "file")
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        self._lengths = array("I")  # of all payloads: the file does not have them
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1)
        self._payloads: list[bytes] = []
        self._futures: list[asyncio.Future[None]] = []
        self._working: asyncio.Task[None] | None = None

    async def create_queue(self, queue: str) -> None:
        """Create nothing: there is one file."""

    async def append_record(self, queue: str, position: None, payload: bytes) -> None:
        """Write one payload and sync."""
        self._payloads.append(payload)
        await self._stored()

    async def append_records(self, queue: str, position: None, payloads: Sequence[bytes]) -> None:
        """Write several payloads and sync."""
        self._payloads.extend(payloads)
        await self._stored()

    async def truncate(self, queue: str, position: int) -> None:
        """Forget everything; without positions it is all or nothing."""
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        del self._lengths[:]

    def range(self, queue: str) -> Iterable[tuple[int, bytes]]:
        """Yield all payloads, counted."""
        with open(self._path, "rb") as file:
            yield from enumerate(map(file.read, self._lengths))

    async def close(self) -> None:
        """Close the file."""
        self._thread.shutdown()
        os.close(self._handle)

    def _stored(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._futures.append(future)
        if self._working is None:
            self._working = self._loop.create_task(self._work())
        return future

    async def _work(self) -> None:
        while self._futures:
            payloads, self._payloads = self._payloads, []
            futures, self._futures = self._futures, []
            try:
                await self._loop.run_in_executor(self._thread, self._write, payloads)
            except OSError as error:
                for future in futures:
                    future.set_exception(error)
            else:
                for future in futures:
                    if not future.done():
                        future.set_result(None)
        self._working = None

    def _write(self, payloads: Sequence[bytes]) -> None:
        rest = memoryview(b"".join(payloads))
        while rest:
            rest = rest[os.write(self._handle, rest) :]
        os.fdatasync(self._handle)
        self._lengths.extend(map(len, payloads))
