"""Runs to Arrow RecordBatches, and RecordBatches to runs. Buffers are wrapped, cut and joined, never record by record.

A block on the wire already has the layout of an Arrow BinaryArray: int32 offsets and payloads. Reading wraps it. Small
blocks are joined, because each RecordBatch has a fixed cost in Spark; a large block becomes one RecordBatch. A long
block that contains only positions is cut.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, repeat
from operator import add
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import OFFSET_BYTES, Run
from mrecordlog_async.protocol.wire_decoder import Block

T = TypeVar("T")

BATCH_RECORDS = 16_384
BATCH_BYTES = 16 << 20

MICROSECONDS = 100_000
"""Of a tick, in which a log counts time."""

SMALL_BLOCK_RECORDS = 32
"""Below this many records per block, a batch is gathered column by column."""

RAMP_RECORDS_MIN = 2_048
"""From this size on, pyarrow.compute (50 to 100 µs per call without pandas) beats counting at 27 ns per record."""

READ_SCHEMA = pa.schema(
    [
        pa.field("server", pa.string()),
        pa.field("queue", pa.string()),
        pa.field("queue_id", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("payload", pa.binary()),
    ]
)
"""timestamp: when the record was stored, to 0.1 s; null if that is not known. queue_id: the queue's incarnation.
(queue_id, position) names a record for good; a recreated queue has a new id.
"""

POSITIONS_SCHEMA = READ_SCHEMA.remove(READ_SCHEMA.get_field_index("payload"))
"""Schema of rows without their payload."""


class MalformedRowsError(RecordLogError, ValueError):
    """Rows cannot be written as they are; the message says what to change."""


class RowRun(NamedTuple):
    """Consecutive rows of one queue as one run. position: of the first row; None if the log is to assign it."""

    queue: str
    position: int | None
    run: Run


# Reading.


def record_batches(server: str, blocks: Iterable[Block], *, payload: bool = True) -> Iterator[pa.RecordBatch]:
    """Yield *blocks* as RecordBatches of `READ_SCHEMA`, or of `POSITIONS_SCHEMA` without *payload*."""
    gathered: list[Block] = []
    records = size = 0
    for block in chain.from_iterable(map(_pieces, blocks)):
        if gathered and size + len(block.payload) > BATCH_BYTES:
            yield _record_batch(server, gathered, payload)
            gathered, records, size = [], 0, 0
        gathered.append(block)
        records += block.record_count
        size += len(block.payload)
        if records >= BATCH_RECORDS:
            yield _record_batch(server, gathered, payload)
            gathered, records, size = [], 0, 0
    if gathered:
        yield _record_batch(server, gathered, payload)


def _pieces(block: Block) -> Iterable[Block]:
    """Cut a long block that contains only positions."""
    if block.offsets or block.record_count <= BATCH_RECORDS:
        return (block,)
    return (
        block._replace(first_position=first, record_count=min(block.next_position - first, BATCH_RECORDS))
        for first in range(block.first_position, block.next_position, BATCH_RECORDS)
    )


def _record_batch(server: str, blocks: list[Block], payload: bool) -> pa.RecordBatch:
    if payload and sum(block.record_count for block in blocks) < SMALL_BLOCK_RECORDS * len(blocks):
        return _of_small_blocks(server, blocks)
    spans = _spans(blocks)
    columns: list[Any] = [
        _constant(server, sum(span.records for span in spans)),
        _join([_constant(span.queue, span.records) for span in spans]),
        _join([_constant(span.queue_id, span.records) for span in spans]),
        _join([_positions(span.first, span.records) for span in spans]),
        _join([times for block in blocks for times in _timestamps(block)]).cast(READ_SCHEMA.field("timestamp").type),
    ]
    if payload:
        columns.append(_join([_payloads(block) for block in blocks]))
    return pa.RecordBatch.from_arrays(columns, schema=READ_SCHEMA if payload else POSITIONS_SCHEMA)


def _of_small_blocks(server: str, blocks: list[Block]) -> pa.RecordBatch:
    """Return what `_record_batch` does, gathered column by column: an array for each block would cost more."""
    queues, ids, firsts, counts, offsets, payloads, _ = zip(*blocks, strict=True)
    positions = array("q", chain.from_iterable(map(range, firsts, map(add, firsts, counts))))
    ends = array("i", b"".join([each[OFFSET_BYTES:] for each in offsets]))
    before = _each_times(accumulate(map(len, payloads), initial=0), counts)
    columns: list[Any] = [
        _constant(server, len(positions)),
        pa.array(_each_times(queues, counts), pa.string()),
        _wrap(array("q", _each_times(ids, counts))),
        _wrap(positions),
        pa.array(chain.from_iterable(map(_times_of, blocks)), READ_SCHEMA.field("timestamp").type),
        _payload_column(array("i", chain((0,), map(add, ends, before))), b"".join(payloads)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=READ_SCHEMA)


def _each_times(values: Iterable[T], counts: Iterable[int]) -> Iterator[T]:
    """Yield each of *values* as often as its count says."""
    return chain.from_iterable(map(repeat, values, counts))


def _times_of(block: Block) -> Iterable[int | None]:
    """Return when each record of *block* was stored, in microseconds since 1970, as far as that is known."""
    if len(block.times.ticks) == 1:
        return repeat(block.times.ticks[0] * MICROSECONDS, block.record_count)
    times: list[int | None] = []
    for start, stop, tick in block.times.spans(block.first_position, block.next_position):
        times += [tick * MICROSECONDS] * (stop - start)
    return times + [None] * (block.record_count - len(times))


class _Span(NamedTuple):
    """Consecutive records of one queue."""

    queue: str
    queue_id: int
    first: int
    records: int


def _spans(blocks: list[Block]) -> list[_Span]:
    """Return what *blocks* hold, with consecutive blocks joined."""
    spans: list[_Span] = []
    for block in blocks:
        last = spans[-1] if spans else None
        if last is not None and (last.queue, last.queue_id, last.first + last.records) == block[:3]:
            spans[-1] = last._replace(records=last.records + block.record_count)
        else:
            spans.append(_Span(*block[:4]))
    return spans


def _payloads(block: Block) -> Any:
    return _payload_column(block.offsets, block.payload)


def _payload_column(offsets: Any, payload: Any) -> Any:
    """Return a column of payloads; raise ArrowInvalid if it is malformed."""
    records = memoryview(offsets).nbytes // OFFSET_BYTES - 1
    column = pa.Array.from_buffers(pa.binary(), records, [None, pa.py_buffer(offsets), pa.py_buffer(payload)])
    # The offsets come from a service; decreasing ones would crash the process that reads the column.
    column.validate(full=True)
    return column


def _positions(first: int, records: int) -> Any:
    if records < RAMP_RECORDS_MIN:
        return _wrap(array("q", range(first, first + records)))
    return pc.add(_counted(_power_of_two(records)).slice(0, records), _scalar(first))


def _timestamps(block: Block) -> Iterator[Any]:
    """Yield when the records of *block* were stored, in microseconds since 1970, as far as that is known."""
    known = block.first_position
    for start, stop, tick in block.times.spans(block.first_position, block.next_position):
        yield _constant(tick * MICROSECONDS, stop - start)
        known = stop
    if known < block.next_position:
        yield pa.nulls(block.next_position - known, pa.int64())


def _constant(value: str | int, records: int) -> Any:
    return _repeated(value, _power_of_two(records)).slice(0, records)


def _power_of_two(records: int) -> int:
    return 1 << (records - 1).bit_length()


def _wrap(positions: array[int]) -> Any:
    return pa.Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(positions)])


# Both are the same for every block: building them once and slicing costs 1 % of filling them each time.
@lru_cache(maxsize=64)
def _repeated(value: str | int, size: int) -> Any:
    return pa.repeat(_scalar(value), size)


@lru_cache(maxsize=8)
def _counted(size: int) -> Any:
    return _wrap(array("q", range(size)))


def _scalar(value: str | int) -> Any:
    """Return *value* from buffers: `pa.scalar` imports pandas, most of what a worker that reads takes to start."""
    if isinstance(value, int):
        return _wrap(array("q", (value,)))[0]
    text = value.encode()
    buffers = [None, pa.py_buffer(array("i", (0, len(text)))), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), 1, buffers)[0]


def _join(columns: list[Any]) -> Any:
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)


# Writing.


def row_runs(batch: pa.RecordBatch, queue: str | None) -> Iterator[RowRun]:
    """Cut rows into runs: a new one starts where the queue changes or a position does not follow the previous one.

    Args:
        batch: rows with the column payload, and optionally queue and position.
        queue: the queue of all rows, if there is no column queue.

    Raises:
        MalformedRowsError: a column contains nulls, or a name of a queue is empty.
    """
    names = batch.schema.names
    payloads = _binary_column(batch)
    queues = batch.column("queue").cast(pa.string()) if "queue" in names else None
    positions = batch.column("position").cast(pa.int64()) if "position" in names else None
    for column, name in ((queues, "queue"), (positions, "position")):
        if column is not None and column.null_count:
            raise MalformedRowsError(f"the column {name!r} is null in {column.null_count} rows; filter them")
    if queues is not None and (empty := pc.sum(pc.equal(queues, "")).as_py()):
        raise MalformedRowsError(f"the column 'queue' is empty in {empty} rows; filter them")
    for first, stop in _bounds(batch.num_rows, queues, positions):
        yield RowRun(
            str(queues[first].as_py()) if queues is not None else queue or "",
            positions[first].as_py() if positions is not None else None,
            _run(payloads, first, stop, positions[first].as_py() if positions is not None else 0),
        )


def _binary_column(batch: pa.RecordBatch) -> Any:
    column = batch.column("payload")
    if column.null_count:
        raise MalformedRowsError(f"the column 'payload' is null in {column.null_count} rows; filter them")
    if column.type == pa.large_binary() or column.type == pa.large_string():
        column = column.cast(pa.large_binary())
    return column.cast(pa.binary())


def _bounds(rows: int, queues: Any, positions: Any) -> Iterator[tuple[int, int]]:
    """Yield (first row, row after the last) of each run."""
    if not rows:
        return
    breaks = None
    if queues is not None:
        breaks = pc.not_equal(queues.slice(1), queues.slice(0, rows - 1))
    if positions is not None:
        jumps = pc.not_equal(pc.subtract(positions.slice(1), positions.slice(0, rows - 1)), 1)
        breaks = jumps if breaks is None else pc.or_(breaks, jumps)
    first = 0
    for index in [] if breaks is None else pc.indices_nonzero(breaks).to_pylist():
        yield first, index + 1
        first = index + 1
    yield first, rows


def _run(payloads: Any, first: int, stop: int, position: int) -> Run:
    part = payloads.slice(first, stop - first)
    _, offsets_buffer, data = part.buffers()
    offsets = pa.Array.from_buffers(pa.int32(), len(part) + 1, [None, offsets_buffer], offset=part.offset)
    base, end = offsets[0].as_py(), offsets[len(part)].as_py()
    if base:
        offsets = pc.subtract(offsets, pa.scalar(base, pa.int32()))  # a plain int would make it int64
    start = offsets.offset * 4
    packed = offsets.buffers()[1].slice(start, (len(part) + 1) * 4).to_pybytes()
    payload = data.slice(base, end - base).to_pybytes() if data is not None else b""
    return Run(position, packed, payload)
