"""What every peer offers to the workload, and how one that is not there says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class MissingPeerError(Exception):
    """The peer cannot be measured here; the message says what is missing."""


class EmbeddedStore(Protocol):
    """A store inside this process. All calls block and come from one thread at a time."""

    def store(self, payloads: Sequence[bytes]) -> None:
        """Append *payloads* in order, in one transaction; return when they would survive a power cut."""

    def read(self) -> Iterable[bytes]:
        """Yield everything, in order."""

    def close(self) -> None:
        """Close it."""


class ServerStore(Protocol):
    """A server of our own on this machine."""

    async def append(self, payload: bytes) -> None:
        """Append *payload*; return when it would survive a power cut."""

    async def read(self) -> Iterable[bytes]:
        """Return everything, in order."""

    async def close(self) -> None:
        """Stop it."""
