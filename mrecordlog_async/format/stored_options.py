"""What is set for a queue: one value, the same in memory, in an OPTIONS record and in the table of a segment.

    options = flags u8, most bytes u64, most records u64, highest age u64, then the optional parts that the flags name

An option of a later version is an optional part: a flag, and 8 bytes only where it is set. So the bytes of a queue that
does not use it stay as they were, and a version that does not know it refuses the flag. A new option that is a limit is
a field of `StoredOptions` after all others; its flag and its bytes follow from that place. A new choice is a flag, the
highest that is free.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from mrecordlog_async.format.fields import KIND_AND_ID, FieldReader, RecordError

OPTIONS = 10

KEEP_UNTIL_ACKNOWLEDGED, DROP_OLDEST, SEALED = 1, 2, 4
"""The flags of `StoredOptions`; those of optional parts follow."""

_FIXED = struct.Struct("<BQQQ")
_PART = struct.Struct("<Q")


class StoredOptions(NamedTuple):
    """Options of a queue: flags, and limits where 0 means none. The flags of optional parts are not among them.

    A limit in nanoseconds has a name with `_ns` and concerns no append; any other limits what is appended.
    """

    flags: int = 0
    max_bytes: int = 0
    max_records: int = 0
    max_age_ns: int = 0
    keep_at_least_ns: int = 0  # the first that 0.2.0 does not know

    def limits_appends(self) -> bool:
        """Return whether an append may be refused, or needs room: the other options do not concern it."""
        return bool(self.flags & SEALED or any(_append_limits(self)))

    def removed_from_ns(self) -> int:
        """Return the age from which retention removes records, maybe only acknowledged ones; 0 if it removes none."""
        return self.max_age_ns or self.keep_at_least_ns


PLAIN = StoredOptions()
"""The options of a queue for which nothing is set. No other `shared` object is equal to it, so `is` decides."""

SHARED_MAX = 1_024
"""This many different options are shared by the queues that have them."""


class SetOptions(NamedTuple):
    """Replaces the options of a queue."""

    id: int
    options: StoredOptions


def shared(options: StoredOptions) -> StoredOptions:
    """Return the object that all queues with these options share; `PLAIN` itself if nothing is set."""
    return PLAIN if options == PLAIN else _one_of(options)


@lru_cache(SHARED_MAX)
def _one_of(options: StoredOptions) -> StoredOptions:
    return options


_append_limits: Callable[[StoredOptions], tuple[int, ...]] = attrgetter(
    *(name for name in StoredOptions._fields[1:] if not name.endswith("_ns"))
)

_PARTS = tuple((8 << at, name) for at, name in enumerate(StoredOptions._fields[4:]))
"""Flag and field of each optional part, in the order of their bytes."""

_KNOWN_FLAGS = KEEP_UNTIL_ACKNOWLEDGED | DROP_OLDEST | SEALED
_PART_FLAGS = sum(flag for flag, _ in _PARTS)

OPTIONS_BYTES_MAX = _FIXED.size + len(_PARTS) * _PART.size


def encode_options(values: StoredOptions) -> bytes:
    """Encode the options of a queue."""
    flags, max_bytes, max_records, max_age_ns, *optional = values
    parts = b""
    if any(optional):
        found = [(flag, _PART.pack(value)) for (flag, _), value in zip(_PARTS, optional, strict=True) if value]
        flags, parts = flags | sum(flag for flag, _ in found), b"".join(part for _, part in found)
    return _FIXED.pack(flags, max_bytes, max_records, max_age_ns) + parts


def read_options(reader: FieldReader) -> StoredOptions:
    """Read the options of a queue; raise RecordError for flags that this version does not know."""
    flags, *limits = reader.fields(_FIXED)
    if flags & ~(_KNOWN_FLAGS | _PART_FLAGS):
        raise RecordError(f"the options of a queue have unknown flags {flags}")
    values = StoredOptions(flags & _KNOWN_FLAGS, *limits)
    for flag, name in _PARTS if flags & _PART_FLAGS else ():
        if flags & flag:
            (value,) = reader.fields(_PART)
            if not value:
                raise RecordError(f"the options of a queue have a {name} that says nothing")
            values = values._replace(**{name: value})
    return values


def encode_set_options(record: SetOptions) -> bytes:
    """Encode an OPTIONS record."""
    return KIND_AND_ID.pack(OPTIONS, record.id) + encode_options(record.options)


def decode_set_options(body: memoryview | bytes) -> SetOptions:
    """Decode an OPTIONS record; raise RecordError if its bytes do not match its kind."""
    reader = FieldReader(body)
    _, queue_id = reader.fields(KIND_AND_ID)
    record = SetOptions(queue_id, read_options(reader))
    if reader.left():
        raise RecordError("a log record has the wrong length")
    return record
