"""The crate's log records, to bytes and back."""

from __future__ import annotations

import struct
from typing import NamedTuple

TRUNCATE, TOUCH, DELETE, APPEND = range(1, 5)

NAME_BYTES_MAX = 65_535

_HEAD = struct.Struct("<BQH")
_ITEM = struct.Struct("<QI")


class LogRecord(NamedTuple):
    """One record. position: see the package docstring; items: (position, payload) of an append, else empty."""

    kind: int
    queue: str
    position: int
    items: tuple[tuple[int, bytes], ...] = ()


class CrateRecordError(ValueError):
    """The bytes are not a record that the crate can read. The crate skips them."""


def encode_record(record: LogRecord) -> bytes:
    """Encode a record."""
    name = record.queue.encode()
    parts = [_HEAD.pack(record.kind, record.position, len(name)), name]
    for position, payload in record.items:
        parts.append(_ITEM.pack(position, len(payload)))
        parts.append(payload)
    return b"".join(parts)


def decode_record(body: bytes) -> LogRecord:
    """Decode a record. Raises CrateRecordError if the crate could not read it."""
    if len(body) < _HEAD.size:
        raise CrateRecordError("a record is shorter than its head")
    kind, position, name_bytes = _HEAD.unpack_from(body)
    if not TRUNCATE <= kind <= APPEND:
        raise CrateRecordError(f"record kind {kind} is not known")
    items_at = _HEAD.size + name_bytes
    if items_at > len(body):
        raise CrateRecordError("a record's queue name is cut short")
    try:
        queue = body[_HEAD.size : items_at].decode()
    except UnicodeDecodeError:
        raise CrateRecordError("a record's queue name is not UTF-8") from None
    items = _decode_items(body, items_at) if kind == APPEND else ()
    return LogRecord(kind, queue, position, items)


def _decode_items(body: bytes, at: int) -> tuple[tuple[int, bytes], ...]:
    items = []
    while at < len(body):
        if at + _ITEM.size > len(body):
            raise CrateRecordError("an item is cut short")
        position, length = _ITEM.unpack_from(body, at)
        start = at + _ITEM.size
        at = start + length
        if at > len(body):
            raise CrateRecordError("an item is cut short")
        items.append((position, body[start:at]))
    return tuple(items)
