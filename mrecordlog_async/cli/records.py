"""The commands that store and read records: append, cat and consume."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from mrecordlog_async.cli.errors import FAILED, FINE, UsageError
from mrecordlog_async.cli.logs import WRITE_RETRY_SECONDS, Log, consumers, takes_log, takes_queue
from mrecordlog_async.cli.params import (
    COUNT,
    POSITION,
    START,
    command,
)
from mrecordlog_async.cli.text import plural

if TYPE_CHECKING:
    from mrecordlog_async.model import Batch, Run, Start, Times
    from mrecordlog_async.readonly import ReadOnlyLog

FOLLOW_SECONDS = 0.2
"""Pause between two looks into a directory that is followed. A look that finds nothing is two tiny reads."""
BATCH_RECORDS = 1_000
BATCH_SECONDS = 0.2
"""Longest time to fill a batch that `consume` hands out."""


@command(takes_no_more="the record is read from standard input: `echo RECORD | mrecordlog append LOG QUEUE`")
@takes_log
@takes_queue("Queue to append to.")
@click.option("--lines", is_flag=True, help="Store each line as a record (default: all input is one record).")
@click.option(
    "--position",
    type=POSITION,
    help="Position of the record; resending it at the same position stores it once (default: the next position).",
)
@click.option("--create", is_flag=True, help="Create the queue if it does not exist.")
def append(log: Log, queue: str, lines: bool, position: int | None, create: bool) -> int:
    """Append standard input to a queue, as one record or one record per line.

    With --lines, lines are sent as they arrive, so the command can read a pipe that never ends. At the end it prints
    the number of lines stored. In a directory all of these are durable, in a service as its `serve --persist` says. A
    service stores each line exactly once, even if it restarts meanwhile.

      echo '{"order": 7}' | mrecordlog append ./wal orders --create
      tail -f access.log | mrecordlog append http://127.0.0.1:8080 access --lines
    """
    import asyncio

    from mrecordlog_async.names import check_name
    from mrecordlog_async.storage.directory import LogDirectory

    check_name(queue)  # before the input, which somebody may be typing, is read
    if lines and position is not None:
        raise UsageError("--position is for one record and cannot be combined with --lines")
    if not log.is_service and not create:
        LogDirectory.at(log.place).list_log()  # the log is opened, and so held, only when the input was read
    work = _append_lines(log, queue, create) if lines else _append_one(log, queue, position, create)
    print(f"{queue}: {asyncio.run(work)}")
    return FINE


async def _append_one(log: Log, queue: str, position: int | None, create: bool) -> str:
    from mrecordlog_async.cli.streams import read_input
    from mrecordlog_async.errors import QueueNotFoundError

    if log.is_service:  # errors of one that does not respond, or has no such queue, come before the input is read
        async with log.connect(WRITE_RETRY_SECONDS) as client:
            if not await client.queue_exists(queue) and not create:
                raise QueueNotFoundError(queue)
    payload = b"".join([piece async for piece in read_input()])
    async with log.open(create=create) as target:
        if create:
            await target.create_queue(queue, exist_ok=True)
        stored = await target.append_record(queue, position, payload)
    return f"position {position} already holds this record" if stored is None else _stored(1, "record", stored)


async def _append_lines(log: Log, queue: str, create: bool) -> str:
    from mrecordlog_async.cli.streams import read_lines

    records, last = 0, None
    try:
        async with _appender(log, queue, create) as store:
            async for lines in read_lines():
                last = await store(lines)
                records += len(lines)
    except BaseException:
        if records:
            print(f"mrecordlog: {_stored(records, 'line', last)}", file=sys.stderr)
        raise
    return _stored(records, "record", last)


def _stored(count: int, word: str, last: int | None) -> str:
    return f"{plural(count, word)} stored{'' if last is None else f', up to position {last}'}"


@asynccontextmanager
async def _appender(log: Log, queue: str, create: bool) -> AsyncIterator[Any]:
    """Yield a function that stores lines: a log's own, or a producer's, which survives a restart of the service."""
    async with log.open(create=create) as target:
        if log.is_service:
            async with target.producer(queue, create=create) as producer:
                yield producer.append_records
            return
        if create:
            await target.create_queue(queue, exist_ok=True)
        yield lambda lines: target.append_records(queue, None, lines)


@command()
@takes_log
@takes_queue("Queue to read.")
@click.option(
    "--start",
    type=START,
    help="First position, or the time from which on records were stored: 2026-11-22T09:30, or 10min ago "
    "(default: the first retained).",
)
@click.option("--stop", type=POSITION, help="Position after the last one (default: the end).")
@click.option("--limit", type=COUNT, help="At most this many records (default: all).")
@click.option("--follow", is_flag=True, help="Continue with new records until the queue ends.")
@click.option(
    "--json", "as_json", is_flag=True, help='Print {"position": 7, "time": …, "payload": "<base64>"} per line.'
)
def cat(
    log: Log, queue: str, start: Start | None, stop: int | None, limit: int | None, follow: bool, as_json: bool
) -> int:
    """Print the records of a queue, each followed by a newline.

    With --follow it continues with new records until the queue is deleted, or sealed and read, or you press Ctrl-C. You
    can follow a directory while another process writes to it.

      mrecordlog cat ./wal orders --start 100 --stop 200
      mrecordlog cat ./wal orders --start 10min --json
      mrecordlog cat http://127.0.0.1:8080 orders --follow
    """
    if follow and (stop is not None or limit is not None):
        raise UsageError("--follow cannot be combined with --stop or --limit")
    write = _write_json if as_json else _write_lines
    if log.is_service:
        import asyncio

        asyncio.run(_cat_service(log, queue, start, stop, limit, follow, write))
        return FINE
    with log.read() as stored:
        first = stored.position_at(queue, start) if isinstance(start, datetime) else start
        if follow:
            _follow(stored, log.place, queue, first, write)
        else:
            _read(stored, queue, first, stop, limit, write)
    return FINE


Write = Callable[["Run", "Times"], None]


def _read(
    stored: ReadOnlyLog, queue: str, start: int | None, stop: int | None, limit: int | None, write: Write
) -> int | None:
    """Write the records of a directory; return the position after the last one."""
    from mrecordlog_async.memory.reads import times_between
    from mrecordlog_async.model import Times

    times = times_between(stored.state_of(queue), start, stop) if write is _write_json else Times.none()
    for run in stored.read_runs(queue, start, stop, limit=limit):
        write(run, times)
        start = run.next_position
    return start


def _follow(stored: ReadOnlyLog, place: str, queue: str, position: int | None, write: Write) -> None:
    """Write what is retained and what comes, until this queue ends; what is truncated first is skipped."""
    from mrecordlog_async.recovery.segment_files import LogReplacedError

    queue_id = stored.state_of(queue).id
    while stored.queue_exists(queue) and stored.state_of(queue).id == queue_id:
        position = _read(stored, queue, position, None, None, write)
        sys.stdout.buffer.flush()
        if stored.state_of(queue).is_sealed():
            return
        while not stored.refresh():
            time.sleep(FOLLOW_SECONDS)
        if stored.went_back:
            raise LogReplacedError(place)


async def _cat_service(
    log: Log, queue: str, start: Start | None, stop: int | None, limit: int | None, follow: bool, write: Write
) -> None:
    async with log.connect() as client:
        async for runs, times in client.timed_runs(queue, start, stop, limit=limit, follow=follow):
            for run in runs:
                write(run, times)
            if follow:
                sys.stdout.buffer.flush()


def _write_lines(run: Run, _: Times) -> None:
    sys.stdout.buffer.write(b"\n".join([*run.payloads(), b""]))


def _write_json(run: Run, times: Times) -> None:
    sys.stdout.buffer.write(b"".join(_json_lines(run, times)))


def _json_lines(run: Run, times: Times) -> Iterator[bytes]:
    from base64 import b64encode

    from mrecordlog_async.model import text_of_tick

    for start, stop, tick in times.spans(run.first_position, run.next_position):
        stored = text_of_tick(tick)
        for position, payload in run.cut(start, stop).records():
            line = {"position": position, "time": stored, "payload": b64encode(payload).decode()}
            yield json.dumps(line).encode() + b"\n"


@command()
@takes_log
@takes_queue("Queue to read.")
@click.option(
    "--consumer",
    required=True,
    metavar="CONSUMER",
    shell_complete=consumers,
    help="Name under which the position is kept.",
)
@click.option("--exec", "program", metavar="CMD", help="Shell command that takes each batch.")
@click.option("--once", is_flag=True, help="Stop after the records that exist now.")
def consume(log: Log, queue: str, consumer: str, program: str | None, once: bool) -> int:
    """Hand the records of a queue to a program or to standard output, and acknowledge what was taken.

    The position is kept in the log under the consumer's name: the next call continues where this one stopped. With
    --exec a shell runs the command for each batch of up to 1,000 records, with the records on its standard input, each
    followed by a newline; a batch is acknowledged if the command exits with 0. Without it, records are acknowledged
    once they are flushed to standard output. A batch that was not acknowledged is handed out again.

      mrecordlog consume http://wal:8080 orders --consumer billing --exec ./bill
      mrecordlog consume ./wal orders --consumer archive --once > orders.txt
    """
    import asyncio

    return asyncio.run(_consume(log, queue, consumer, program, once))


async def _consume(log: Log, queue: str, name: str, program: str | None, once: bool) -> int:
    """Hand out and acknowledge batches until the queue ends; return the exit code of this command."""
    take = _to_program(program) if program else _to_output
    async with log.open() as target, target.consumer(queue, name) as consumer:
        if once:
            batches = consumer.available(max_records=BATCH_RECORDS)
        else:
            batches = consumer.batches(max_records=BATCH_RECORDS, max_wait=BATCH_SECONDS)
        async for batch in batches:
            if (code := await take(batch)) != 0:
                print(f"the command exited with {code}; its batch is not acknowledged", file=sys.stderr)
                return FAILED
            await consumer.acknowledge(batch)
    return FINE


async def _to_output(batch: Batch) -> int:
    from mrecordlog_async.cli.streams import write_output

    await write_output(_lines_of(batch))
    return 0


def _to_program(program: str) -> Callable[[Batch], Awaitable[int]]:
    """Return what hands a batch to a shell, and returns the exit code."""
    import asyncio

    async def take(batch: Batch) -> int:
        process = await asyncio.create_subprocess_shell(program, stdin=asyncio.subprocess.PIPE)
        await process.communicate(_lines_of(batch))
        return process.returncode or 0

    return take


def _lines_of(batch: Batch) -> bytes:
    return b"\n".join([*(payload for _, payload in batch), b""])
