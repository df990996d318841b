"""LOG that names several services: `http://a:8080,http://b:8080`, or `dns+http://name:8080`: every address of a name.

What concerns one queue in one log (a position, a dump) is refused here with the advice to name one service.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from mrecordlog_async.cli.exit_codes import FINE, NOT_READY, NotReadyError, UsageError
from mrecordlog_async.cli.target import RETRY_SECONDS, is_several, names_in, read_tokens
from mrecordlog_async.errors import QueueNotFoundError

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient
    from mrecordlog_async.client.fleet.fleet import RecordLogFleet

T = TypeVar("T")


class One(NamedTuple):
    """One server of several: its name, the id of its log, and its client."""

    server: str
    log_id: str
    client: RecordLogClient


def refuse_several(arguments: argparse.Namespace, why: str) -> None:
    """Raise UsageError if LOG names several services, with *why* this takes one."""
    if is_several(arguments.log):
        raise UsageError(f"{arguments.log} names several services, and {why}: name one of them")


@asynccontextmanager
async def open_fleet(
    arguments: argparse.Namespace, retry_seconds: float = RETRY_SECONDS
) -> AsyncIterator[RecordLogFleet]:
    """Open the fleet that LOG names.

    A server that does not respond may be starting: it is probed for as long as a single one would be.

    Raises:
        NotReadyError: No server responds.
    """
    from mrecordlog_async.client.fleet.fleet import RecordLogFleet

    until = time.monotonic() + RETRY_SECONDS
    tokens = read_tokens(arguments)
    single = {name: tokens[name] for name in names_in(arguments.log) if name in tokens}
    async with RecordLogFleet(arguments.log, token=tokens.get(""), tokens=single, retry_seconds=retry_seconds) as fleet:
        while fleet.failures() and time.monotonic() < until:
            await fleet.look()
        if not any(one.reads for one in fleet.servers()):
            reasons = "; ".join(_failures(fleet))
            raise NotReadyError(f"no service responds at {arguments.log} ({reasons})")
        yield fleet


def servers_of(fleet: RecordLogFleet) -> list[One]:
    """Return the servers that respond, by name; print those that do not to standard error."""
    for failure in _failures(fleet):
        print(f"mrecordlog: {failure}", file=sys.stderr)
    return [One(one.name, one.log_id, fleet.client(one.log_id)) for one in fleet.servers() if one.reads]


def _failures(fleet: RecordLogFleet) -> list[str]:
    """Return why each server that does not respond does not, with what to do about a token."""
    advice = "; name a file with the service's token: --token-file FILE, or --token-file NAME=FILE for NAME=URL"
    return [f"{place}: {why}{advice if '(401 ' in why else ''}" for place, why in sorted(fleet.failures().items())]


def code_of(fleet: RecordLogFleet) -> int:
    """Return the exit code of a command that has concerned every server: not ready if one did not respond."""
    return NOT_READY if fleet.failures() or not all(one.reads for one in fleet.servers()) else FINE


async def each(servers: list[One], call: Callable[[RecordLogClient], Awaitable[T]]) -> list[tuple[One, T]]:
    """Return what *call* returns for each server, without those that have no such queue.

    Raises:
        QueueNotFoundError: No server has the queue.
    """
    found, missing = [], None
    for one in servers:
        try:
            found.append((one, await call(one.client)))
        except QueueNotFoundError as error:
            missing = error
    if not found and missing is not None:
        raise missing
    return found
