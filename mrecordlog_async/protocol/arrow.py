"""Arrow IPC streams, if pyarrow is installed: requests have a column `payload`, responses also `position` and `time`.

A run has the layout of a BinaryArray, so it is sent as a RecordBatch around its two buffers.

Received streams are not trusted. A few bytes of a stream can expand to gigabytes: compressed buffers, dictionaries,
run-end encoding, rows without bytes. So each message is checked before pyarrow reads it, all of these are refused, and
records are counted before they are created. Every record that is left is a part of the body.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from io import BytesIO
from operator import sub
from typing import Any

from mrecordlog_async.model import Run, Times
from mrecordlog_async.protocol.problems import DETAIL_CHARACTERS, ProblemError, bad_request, too_large

CONTENT_TYPE = "application/vnd.apache.arrow.stream"

METADATA_BYTES_MAX = 1024 * 1024
"""Longest metadata of one message: a schema of thousands of columns fits."""

BATCHES_MAX = 65_536
"""Most batches in one body: even empty ones take time."""

SLICE_RECORDS = 10_000
"""Records created at once: a thread that creates more of them blocks the event loop."""

CONTINUATION = b"\xff\xff\xff\xff"
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3


def decode(body: bytes, records_max: int) -> list[bytes]:
    """Return the values of the column `payload` (binary, or text as UTF-8). It blocks: call it on a thread.

    Raises:
        ProblemError: 400 if *body* is not such a stream or could expand beyond its bytes, 413 above *records_max*.
    """
    arrow = _pyarrow()
    try:
        _check_messages(body, records_max)
        return _values(arrow, body)
    except (arrow.ArrowException, OSError, MemoryError, ValueError, KeyError, IndexError, struct.error) as error:
        detail = f"not an Arrow stream with a binary column 'payload': {error}"
    raise bad_request(detail[:DETAIL_CHARACTERS], "bad_body")


def _values(arrow: Any, body: bytes) -> list[bytes]:
    column = _column(arrow, arrow.ipc.open_stream(body).schema)
    options = arrow.ipc.IpcReadOptions(use_threads=False, included_fields=[column])
    found: list[bytes] = []
    for batch in arrow.ipc.open_stream(body, options=options):
        array = batch.column(0)
        array.validate(full=True)  # lengths and offsets are not trusted
        if array.null_count:
            raise ValueError("the column contains nulls; a record may be empty, but not null")
        for at in range(0, len(array), SLICE_RECORDS):
            found += _slice_values(arrow, array.slice(at, SLICE_RECORDS))
    return found


def _column(arrow: Any, schema: Any) -> int:
    """Return the index of the column `payload`; raise ValueError if any column could expand beyond its bytes."""
    types = arrow.types
    for field in schema:
        if types.is_nested(field.type) or types.is_dictionary(field.type) or types.is_run_end_encoded(field.type):
            raise ValueError(f"column {field.name[:40]!r} has a nested or encoded type: send plain columns")
    index: int = schema.get_field_index("payload")
    if index < 0:
        raise ValueError("the column must exist exactly once")
    if schema.field(index).type not in (arrow.binary(), arrow.large_binary(), arrow.string(), arrow.large_string()):
        raise ValueError(f"the column is {schema.field(index).type}: send binary, large_binary, string or large_string")
    return index


def _slice_values(arrow: Any, array: Any) -> Iterable[bytes]:
    """Cut the values out of the array's buffers, without Python code per record."""
    large = array.type in (arrow.large_binary(), arrow.large_string())
    _, offsets, data = array.buffers()
    if not len(array):
        return ()
    # Sliced before the cast: the buffer is not trusted, and its length may not be a multiple of the offset size.
    size = 8 if large else 4
    view = memoryview(offsets)[array.offset * size : (array.offset + len(array) + 1) * size]
    ends = view.cast("q" if large else "i").tolist()
    payload = BytesIO(data if data is not None else b"")
    payload.seek(ends[0])
    return map(payload.read, map(sub, ends[1:], ends))


def _check_messages(body: bytes, records_max: int) -> None:
    """Check every message; raise for content that could expand beyond the body's bytes."""
    records = 0
    for count, (kind, header) in enumerate(_messages_in(body)):
        if count > BATCHES_MAX:
            raise too_large(count, BATCHES_MAX, "batches in one body")
        if kind == DICTIONARY_BATCH:
            raise ValueError("dictionaries are not supported: send the values")
        if kind == RECORD_BATCH:
            if header.table(3) is not None:
                raise ValueError("compressed buffers are not supported: write the stream without compression")
            records += header.number(0, "<q")
            if records > records_max:
                raise too_large(records, records_max, "records in one body")


def _messages_in(body: bytes) -> Iterator[tuple[int, _Table]]:
    """Yield type and header of each message of a stream; raise struct.error or ValueError if it is malformed."""
    at = 0
    while at < len(body):
        if body[at : at + 4] == CONTINUATION:
            at += 4
        (size,) = struct.unpack_from("<i", body, at)
        at += 4
        if not size:  # the end of the stream
            if body.count(0, at) != len(body) - at:  # anything but padding: pyarrow would not read it
                raise ValueError("more bytes follow the end of the stream; send one stream in a body")
            return
        if not 0 < size <= METADATA_BYTES_MAX or at + size > len(body):
            raise ValueError(
                f"a message announces {size} bytes of metadata; the limit is {METADATA_BYTES_MAX}, or what follows"
            )
        message = _Table.root(body[at : at + size])
        at += size
        header = message.table(2)
        body_bytes = message.number(3, "<q")
        if header is None or not 0 <= body_bytes <= len(body) - at:
            raise ValueError(f"a message announces {body_bytes} bytes, but {len(body) - at} follow")
        at += body_bytes
        yield message.number(1, "<B"), header


class _Table:
    """A table of a flatbuffer. Every access is checked against the buffer and raises struct.error or ValueError."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        (back,) = struct.unpack_from("<i", data, at)
        self._vtable = at - back
        if self._vtable < 0:
            raise ValueError("the metadata is damaged")
        (self._vtable_bytes,) = struct.unpack_from("<H", data, self._vtable)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def table(self, field: int) -> _Table | None:
        """Return the table that a field refers to, None if the field is absent."""
        place = self._place(field)
        if not place:
            return None
        return _Table(self._data, self._at + place + struct.unpack_from("<I", self._data, self._at + place)[0])

    def number(self, field: int, layout: str) -> int:
        """Return a field, 0 if it is absent."""
        place = self._place(field)
        value: int = struct.unpack_from(layout, self._data, self._at + place)[0] if place else 0
        if value < 0:
            raise ValueError("the metadata is damaged")
        return value

    def _place(self, field: int) -> int:
        if 4 + 2 * field + 2 > self._vtable_bytes:
            return 0
        place: int = struct.unpack_from("<H", self._data, self._vtable + 4 + 2 * field)[0]
        return place


def encode(runs: Iterable[Run], times: Times) -> Iterator[bytes]:
    """Yield *runs* as a stream, one RecordBatch each. *times*: when their records were stored."""
    arrow = _pyarrow()
    moments = arrow.timestamp("ms", tz="UTC")
    schema = arrow.schema([("position", arrow.int64()), ("time", moments), ("payload", arrow.binary())])
    sink = _Sink()
    with arrow.ipc.new_stream(sink, schema) as writer:
        for run in runs:
            buffers = [None, arrow.py_buffer(run.offsets), arrow.py_buffer(run.payload)]
            payload = arrow.BinaryArray.from_buffers(arrow.binary(), run.record_count, buffers)
            position = _numbers(arrow.int64(), array("q", range(run.first_position, run.next_position)))
            time = _numbers(moments, _milliseconds(run, times))
            writer.write_batch(arrow.record_batch([position, time, payload], schema=schema))
            del buffers, payload
            yield from sink.taken()
    yield from sink.taken()


def _numbers(kind: Any, values: array[int]) -> Any:
    """Return *values* as a column, without a copy: a cast would load pyarrow's functions, which takes 0.2 s once."""
    arrow = _pyarrow()
    return arrow.Array.from_buffers(kind, len(values), [None, arrow.py_buffer(values)])


def _milliseconds(run: Run, times: Times) -> array[int]:
    """Return when each record of *run* was stored, in milliseconds since 1970."""
    found = array("q")
    for start, stop, tick in times.spans(run.first_position, run.next_position):
        found.extend(array("q", (tick * 100,)) * (stop - start))
    return found


class _Sink:
    """A file for pyarrow to write to; `taken` returns what was written."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: `write` keeps no buffer."""

    def taken(self) -> Iterator[bytes]:
        written, self._written = self._written, []
        return iter(written)


def release_unused() -> None:
    """Return unused memory of pyarrow's allocator to the system, if pyarrow was imported."""
    pool = getattr(sys.modules.get("pyarrow"), "default_memory_pool", None)  # another thread may be importing it
    if pool is not None:
        pool().release_unused()


async def ready(status: int) -> None:
    """Import pyarrow on a thread: the first import takes a quarter of a second.

    Raises:
        ProblemError: pyarrow is not installed; *status* is the status of the problem.
    """
    if "pyarrow.ipc" not in sys.modules:
        await asyncio.to_thread(_pyarrow, status)


def _pyarrow(status: int = 415) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ModuleNotFoundError:
        raise ProblemError(status, "no_arrow", "this service has no pyarrow: use another content type") from None
    return pyarrow
