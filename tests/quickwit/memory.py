"""The crate's files in memory."""

from __future__ import annotations

from collections.abc import Sequence

from mrecordlog_async.quickwit.frame import BLOCK_BYTES


class Memory:
    """A directory in memory, to read from and to write to."""

    def __init__(self, contents: dict[int, bytes] | None = None) -> None:
        self.contents = {number: bytearray(data) for number, data in (contents or {}).items()}

    @property
    def numbers(self) -> Sequence[int]:
        """See `Source`."""
        return sorted(self.contents)

    def block(self, number: int, offset: int) -> bytes:
        """See `Source`."""
        return bytes(self.contents[number][offset : offset + BLOCK_BYTES])

    def create(self, number: int, size: int) -> None:
        """See `Target`."""
        self.contents[number] = bytearray(size)

    def write(self, number: int, offset: int, data: bytes) -> None:
        """See `Target`."""
        content = self.contents[number]
        content.extend(bytes(max(offset + len(data) - len(content), 0)))
        content[offset : offset + len(data)] = data

    def sync(self, number: int) -> None:
        """See `Target`."""

    def unlink(self, number: int) -> None:
        """See `Target`."""
        del self.contents[number]
