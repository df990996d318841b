"""The disk thread of the forgetful disk: makes the calls that the one in C makes, in the same order, one at a time.

Between two of its calls the virtual loop turns, so that anything may happen meanwhile. `wait` makes the rest at once,
on whatever thread calls it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES, Buffer

if TYPE_CHECKING:
    from .disk import Disk

Later = Callable[[Callable[[], object]], object]
"""Has the loop call something a few turns later."""


class ModelDiskThread:
    """See `storage.filesystem.DiskThread`. `VirtualLoop.add_reader` sets `later` and `on_ring`."""

    def __init__(self, disk: Disk) -> None:
        self.later: Later = lambda step: None
        self.on_ring: Callable[[], object] = lambda: None
        self._disk = disk
        self._segment = self._lock = -1
        self._steps: Iterator[None] | None = None
        self._waits = self._rung = self._ended = False
        self._result: tuple[bool, int, float] | None = None

    def fileno(self) -> int:
        raise AssertionError("the virtual loop watches the thread itself")

    def use(self, segment: int, lock: int) -> None:
        if self._steps is not None:
            self._disk.misuse.append("the disk thread got another segment while it was writing")
        self._close()
        if segment >= 0:
            own = self._disk.duplicate(segment)
            try:
                self._segment, self._lock = own, self._disk.duplicate(lock)
            except OSError:
                self._disk.close(own)
                raise

    def start(self, kept: bytes, frames: bytes, offset: int) -> bool:
        if self._segment < 0 or self._ended or self._steps is not None or self._result is not None:
            return False
        staged = kept + frames
        staged += bytes(-len(staged) % DIRECT_BLOCK_BYTES)
        self._steps = self._write(staged, offset)
        self.later(self._step)
        return True

    def wait(self) -> tuple[bool, int, float] | None:
        self._waits = True
        while self._steps is not None:
            self._go_on()
        self._waits = False
        result, self._result = self._result, None
        return result

    def has_rung(self) -> bool:
        rung, self._rung = self._rung, False
        return rung

    def has_ended(self) -> bool:
        return self._ended

    def end(self) -> None:
        while self._steps is not None:
            self._go_on()
        self._ended = True
        self._close()
        self._ring()

    def forget(self) -> None:
        raise AssertionError("the model has no forked children")

    def _step(self) -> None:
        if self._steps is not None and not self._waits:
            self._go_on()
            self.later(self._step)

    def _go_on(self) -> None:
        """Make the next call to the disk."""
        assert self._steps is not None
        if next(self._steps, self) is self:
            self._steps = None
            self._ring()

    def _ring(self) -> None:
        self._rung = True
        self.on_ring()

    def _close(self) -> None:
        for handle in (self._segment, self._lock):
            if handle >= 0:
                self._disk.close(handle)
        self._segment = self._lock = -1

    def _call(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        return self._disk.write_durable(handle, buffers, offset)

    def _links(self, handle: int) -> int:
        try:
            return self._disk.links(handle)
        except OSError:
            return -1

    def _write(self, staged: bytes, offset: int) -> Iterator[None]:
        self._result = False, 0, 0.0
        if self._links(self._segment) != 1:
            return
        yield
        if self._links(self._lock) < 1:
            return
        at, was_short = 0, False
        while at < len(staged):
            yield
            try:
                taken = self._call(self._segment, [memoryview(staged)[at:]], offset + at)
            except OSError as error:
                self._result = True, error.errno or errno.EIO, 0.0
                return
            is_short = taken < DIRECT_BLOCK_BYTES
            if taken == 0 or (is_short and was_short):
                self._result = True, -1, 0.0
                return
            at, was_short = at + taken - taken % DIRECT_BLOCK_BYTES, is_short
        self._result = True, 0, 0.0
