"""`mrecordlog append QUEUE`: store standard input, as one record or line by line.

Lines are sent as they come, so it also stands at the end of a pipe that never ends. Every line that is counted at the
end is stored; through a service each is stored once, also when the service is restarted meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mrecordlog_async.cli.exit_codes import FINE, UsageError
from mrecordlog_async.cli.target import APPEND_RETRY_SECONDS, add_target, connect, open_target, run_async
from mrecordlog_async.log import MultiRecordLog

READ_BYTES = 1024 * 1024


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "append", help="store standard input", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("queue")
    add_target(parser)
    parser.add_argument("--lines", action="store_true", help="every line is a record (without it: all is one record)")
    parser.add_argument("--position", type=int, help="position of the record; sent again, it is stored once")
    parser.add_argument("--create", action="store_true", help="make the queue if it is not there")
    parser.add_argument("--json", action="store_true", help="tell the result as JSON")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Store what comes."""
    if arguments.lines and arguments.position is not None:
        raise UsageError("--position belongs to one record; lines get theirs one after the other")
    return run_async(_append_lines(arguments) if arguments.lines else _append_one(arguments))


async def _append_one(arguments: argparse.Namespace) -> int:
    payload = b"".join([piece async for piece in read_input()])
    async with open_target(arguments, create=arguments.create) as target:
        if arguments.create:
            await target.create_queue(arguments.queue, exist_ok=True)
        position = await target.append_record(arguments.queue, arguments.position, payload)
    duplicate = position is None
    _tell(arguments, 1, arguments.position if duplicate else position, duplicate)
    return FINE


async def _append_lines(arguments: argparse.Namespace) -> int:
    records, last = 0, None
    try:
        async with _appender(arguments) as append:
            async for lines in _lines():
                last = await append(lines)
                records += len(lines)
    except BaseException:
        if records:
            print(f"mrecordlog: {records} lines are stored, up to position {last}", file=sys.stderr)
        raise
    _tell(arguments, records, last, False)
    return FINE


@asynccontextmanager
async def _appender(arguments: argparse.Namespace) -> AsyncIterator[Any]:
    """Yield a function that stores lines: a log's own, or a producer's, which survives a restart of the service."""
    if arguments.dir is not None:
        async with MultiRecordLog.open(arguments.dir, create=arguments.create) as log:
            if arguments.create:
                await log.create_queue(arguments.queue, exist_ok=True)

            async def append(lines: list[bytes]) -> int | None:
                return await log.append_records(arguments.queue, None, lines)

            yield append
    else:
        async with (
            connect(arguments, APPEND_RETRY_SECONDS) as client,
            client.producer(arguments.queue, create=arguments.create) as producer,
        ):
            yield producer.append_records


async def _lines() -> AsyncIterator[list[bytes]]:
    """Yield lines, as many as are there at once; the last one needs no newline."""
    rest = b""
    async for piece in read_input():
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def read_input() -> AsyncIterator[bytes]:
    """Yield standard input in pieces, read by a thread that nobody waits for: Ctrl-C works while nothing comes."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(4)

    def read() -> None:
        piece = b"?"
        while piece:
            room.acquire()
            try:
                piece = os.read(0, READ_BYTES)  # not sys.stdin: its lock must be free when the process ends
            except OSError as error:
                loop.call_soon_threadsafe(pieces.put_nowait, error)
                return
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

    threading.Thread(target=read, daemon=True, name="standard input").start()
    while piece := await pieces.get():
        room.release()
        if isinstance(piece, OSError):
            raise piece
        yield piece


def _tell(arguments: argparse.Namespace, records: int, position: int | None, duplicate: bool) -> None:
    if arguments.json:
        print(json.dumps({"queue": arguments.queue, "records": records, "position": position, "duplicate": duplicate}))
    elif duplicate:
        print(f"{arguments.queue}: position {position} already holds this record")
    else:
        what = "1 record" if records == 1 else f"{records} records"
        print(f"{arguments.queue}: {what} stored" + ("" if position is None else f", up to position {position}"))
