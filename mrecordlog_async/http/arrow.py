"""Arrow IPC streams, where pyarrow is installed: one binary column `payload` in, `position` and `payload` out.

A run already is a BinaryArray: it goes out as a RecordBatch around its two buffers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import Any

from mrecordlog_async.http.problems import ProblemError
from mrecordlog_async.model import Run

CONTENT_TYPE = "application/vnd.apache.arrow.stream"


def decode(body: bytes) -> list[bytes]:
    """Return the values of the column `payload` (binary, or text as UTF-8); ValueError where there is none."""
    arrow = _pyarrow()
    try:
        table = arrow.ipc.open_stream(body).read_all()
        table.validate(full=True)  # lengths and offsets come from outside
        column = table.column("payload").cast(arrow.binary())
    except (arrow.ArrowException, KeyError) as error:
        raise ValueError(f"not an Arrow stream with a binary column 'payload': {error}") from None
    if column.null_count:
        raise ValueError("the column 'payload' holds nulls; a record may be empty, but not absent")
    values: list[bytes] = column.to_pylist()
    return values


def encode(runs: Iterable[Run]) -> bytes:
    """Return *runs* as a stream, one RecordBatch each."""
    arrow = _pyarrow()
    schema = arrow.schema([("position", arrow.int64()), ("payload", arrow.binary())])
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, schema) as writer:
        for run in runs:
            buffers = [None, arrow.py_buffer(run.offsets), arrow.py_buffer(run.payload)]
            payload = arrow.BinaryArray.from_buffers(arrow.binary(), run.records, buffers)
            position = arrow.array(range(run.first_position, run.next_position), arrow.int64())
            writer.write_batch(arrow.record_batch([position, payload], schema=schema))
    body: bytes = sink.getvalue().to_pybytes()
    return body


async def ready(status: int) -> None:
    """Import pyarrow where that does not hold up the event loop: it takes a quarter of a second the first time.

    Raises the problem with *status* where there is none.
    """
    if "pyarrow.ipc" not in sys.modules:
        await asyncio.to_thread(_pyarrow, status)


def _pyarrow(status: int = 415) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ModuleNotFoundError:
        raise ProblemError(status, "no_arrow", "this service has no pyarrow: send and ask for another type") from None
    return pyarrow
