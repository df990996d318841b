"""What a store offers to the group commit, and how one that is not installed reports it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol

Item = tuple[int, int, bytes]
"""The number of a queue, the position of a record in it, and its payload."""


class MissingPeerError(Exception):
    """The peer cannot be measured here; the message says what is missing."""


class EmbeddedStore(Protocol):
    """A store inside this process. All calls block; those that write come from one thread at a time."""

    def store(self, items: Sequence[Item]) -> None:
        """Store *items* in one transaction; return when they would survive a power cut."""

    def truncate(self, queue: int, position: int) -> None:
        """Delete the records of *queue* up to and including *position*, durably."""

    def read(self, queue: int) -> Iterable[tuple[int, bytes]]:
        """Yield position and payload of the records of *queue*, in order."""

    def close(self) -> None:
        """Close it."""


class ServerStore(Protocol):
    """A store in its own process, whose calls are coroutines; otherwise like `EmbeddedStore`."""

    def store(self, items: Sequence[Item]) -> Awaitable[None]:
        """See `EmbeddedStore`."""

    def truncate(self, queue: int, position: int) -> Awaitable[None]:
        """See `EmbeddedStore`."""

    def read(self, queue: int) -> Iterable[tuple[int, bytes]]:
        """See `EmbeddedStore`."""

    def close(self) -> Awaitable[None]:
        """See `EmbeddedStore`."""
