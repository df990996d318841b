"""The values that are set for a queue as a whole: a log record replaces one, and the table of each segment repeats it.

This is their only list. Memory, plans, tables and commands hold `StoredSettings` and do not name its fields, unless
they act on one. A new value is

1. a class of log record, (id, value), and a member of `Replacement`;
2. a field of `StoredSettings`, and what it is in `PLAIN`;
3. a row of `_VALUES`: its numbers and its bytes.

Its bytes are the same in the log record, after kind and id, and in the table. The type checker then names what shows
settings and carries them to another log. Consumers are not here: a queue has many, and truncates move them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from mrecordlog_async.format.fields import KIND_AND_ID, FieldReader, RecordError
from mrecordlog_async.format.stored_options import (
    DEFAULT_OPTIONS,
    OPTIONS_BYTES_MAX,
    StoredOptions,
    encode_options,
    read_options,
)

OPTIONS = 10


class SetOptions(NamedTuple):
    """Replaces the options of a queue."""

    id: int
    options: StoredOptions


Replacement = SetOptions
"""The log records that replace one of the values."""


class StoredSettings(NamedTuple):
    """The values that are set for a queue as a whole. Queues with the same ones share it: only `replaced` makes it."""

    options: StoredOptions

    def replaced(self, record: Replacement) -> StoredSettings:
        """Return the settings as *record* leaves them; `PLAIN` itself if nothing is set any more."""
        values: list[Any] = [*self]
        values[_PLACES[type(record)]] = record[1]
        return _shared(StoredSettings._make(values))

    def replacements(self, queue_id: int) -> Iterator[Replacement]:
        """Yield the log records that set the same for another queue."""
        for value, found, unset in zip(_VALUES, self, PLAIN, strict=True):
            if found != unset:
                yield value.record(queue_id, found)

    def encoded(self) -> tuple[int, bytes]:
        """Return what an entry of a table has: the flags of the values that are set, and their bytes."""
        flags, parts = 0, b""
        for at, value in _PLACED:  # a roll waits for this of every queue: half the time of `zip`
            if self[at] != PLAIN[at]:
                flags |= value.flag
                parts += value.encode(self[at])
        return flags, parts

    def more_bytes(self) -> int:
        """Return the bytes that they take in a table, in addition to the `SETTINGS_BYTES` of every queue."""
        more = 0
        for at, value in _LONG:
            if self[at] != PLAIN[at]:
                more += len(value.encode(self[at]))
        return more


PLAIN = StoredSettings(DEFAULT_OPTIONS)
"""The settings of a queue for which nothing is set. No other object is equal to it, so `is` decides."""


class _Value(NamedTuple):
    """One of the values.

    kind: of its log record. flag: in a table's entry. bytes_max: what the table of every queue has room for, so that
    setting the value needs none; 0 for a value that may be long. encode, read: its bytes.
    """

    record: Callable[[int, Any], Replacement]
    kind: int
    flag: int
    bytes_max: int
    encode: Callable[[Any], bytes]
    read: Callable[[FieldReader], Any]


_VALUES = (_Value(SetOptions, OPTIONS, 4, OPTIONS_BYTES_MAX, encode_options, read_options),)
"""In the order of the fields of `StoredSettings`, which is that of their bytes in a table's entry."""

_PLACED = list(enumerate(_VALUES))
_LONG = [(place, value) for place, value in _PLACED if not value.bytes_max]
_PLACES = {value.record: place for place, value in _PLACED}
_BY_KIND = {value.kind: value for value in _VALUES}

SETTINGS_FLAGS = sum(value.flag for value in _VALUES)
SETTINGS_BYTES = sum(value.bytes_max for value in _VALUES)
REPLACEMENT_KINDS = frozenset(_BY_KIND)


def encode_replacement(record: Replacement) -> bytes:
    """Encode a log record that replaces a value."""
    value = _VALUES[_PLACES[type(record)]]
    return KIND_AND_ID.pack(value.kind, record.id) + value.encode(record[1])


def decode_replacement(kind: int, body: memoryview | bytes) -> Replacement:
    """Decode a log record of one of the `REPLACEMENT_KINDS`; raise RecordError if its bytes do not match its kind."""
    reader, value = FieldReader(body), _BY_KIND[kind]
    _, queue_id = reader.fields(KIND_AND_ID)
    record = value.record(queue_id, value.read(reader))
    if reader.left():
        raise RecordError("a log record has the wrong length")
    return record


def read_settings(reader: FieldReader, flags: int, name: str) -> StoredSettings:
    """Read the values that *flags* announce, those of queue *name* in a table; raise RecordError if one is not set."""
    if not flags & SETTINGS_FLAGS:
        return PLAIN
    values: list[Any] = [*PLAIN]
    for place, value in _PLACED:
        if flags & value.flag:
            found = value.read(reader)
            if found == values[place]:
                field = StoredSettings._fields[place]
                raise RecordError(f"the table holds {field} of queue {name!r} that say nothing")
            values[place] = found
    return _shared(tuple.__new__(StoredSettings, values))


SHARED_MAX = 1_024
"""This many different settings are shared by the queues that have them."""


def _shared(settings: StoredSettings) -> StoredSettings:
    return PLAIN if settings == PLAIN else _one_of(settings)


@lru_cache(SHARED_MAX)
def _one_of(settings: StoredSettings) -> StoredSettings:
    return settings
