"""The small parts of a log record, read from bytes that nobody vouches for: fixed-size fields and names."""

from __future__ import annotations

import struct

KIND_AND_ID = struct.Struct("<BQ")
"""The beginning of a log record that names one queue and has no records: its kind, and the queue's id."""


class RecordError(ValueError):
    """The bytes of a valid frame are not a log record that this version knows."""


def unpack(layout: struct.Struct, body: memoryview | bytes) -> tuple[int, ...]:
    """Return the fields at the beginning of *body*; raise RecordError if it is shorter than they are."""
    if len(body) < layout.size:
        raise RecordError("a log record is cut short")
    unpacked: tuple[int, ...] = layout.unpack_from(body)
    return unpacked


def unpack_whole(layout: struct.Struct, body: memoryview | bytes) -> tuple[int, ...]:
    """Return the fields that *body* consists of; raise RecordError if it has another length."""
    if len(body) != layout.size:
        raise RecordError("a log record has the wrong length")
    return layout.unpack(body)


def decode_name(encoded: memoryview | bytes, what: str = "a queue's name") -> str:
    """Return the name that *encoded* consists of; raise RecordError if it is empty or not UTF-8."""
    if not len(encoded):
        raise RecordError(f"{what} is empty")
    try:
        return str(encoded, "utf-8")
    except UnicodeDecodeError:
        raise RecordError(f"{what} is not UTF-8") from None


class FieldReader:
    """Reads a log record field by field. Every method raises RecordError where the record ends too early."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: memoryview | bytes) -> None:
        self._body = body
        self._at = 0

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        """Return the next fields."""
        end = self._at + layout.size
        if end > len(self._body):
            raise RecordError("a log record is cut short")
        unpacked: tuple[int, ...] = layout.unpack_from(self._body, self._at)
        self._at = end
        return unpacked

    def name(self, length: int, what: str = "a queue's name") -> str:
        """Return the next *length* bytes as a name."""
        end = self._at + length
        if end > len(self._body):
            raise RecordError(f"{what} is cut short")
        encoded = self._body[self._at : end]
        self._at = end
        return decode_name(encoded, what)

    def left(self) -> int:
        """Return the number of bytes that were not read yet."""
        return len(self._body) - self._at
