"""LOG that names several services: `http://a:8080,http://b:8080`, or `dns+http://name:8080`: every address of a name.

What concerns one queue in one log (a position, a dump) is refused here with the advice to name one service.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mrecordlog_async.cli.shell.exit_codes import FAILED, FINE, NOT_READY, NotReadyError, UsageError
from mrecordlog_async.cli.shell.explain import explain
from mrecordlog_async.cli.shell.target import (
    RETRY_SECONDS,
    is_several,
    names_in,
    open_placed_target,
    read_tokens,
    refusing_wrong_urls,
    says_not_ready,
)
from mrecordlog_async.errors import QueueNotFoundError, RecordLogError

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient
    from mrecordlog_async.client.fleet.fleet import RecordLogFleet

T = TypeVar("T")

Missing = tuple[type[RecordLogError], ...]

Done = tuple[dict[str, Any], str]
"""Result of a command: facts for --json, and a sentence."""


class RespondingServer(NamedTuple):
    """A server of several: its name, the id of its log, and its client."""

    server: str
    log_id: str
    client: RecordLogClient


def refuse_several(arguments: argparse.Namespace) -> None:
    """Raise UsageError if LOG names several services, where a position is given."""
    if is_several(arguments.log):
        raise UsageError(
            f"{arguments.log} names several services, and a position is one of a single log: name one of them"
        )


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
    with refusing_wrong_urls():
        opening = RecordLogFleet(arguments.log, token=tokens.get(""), tokens=single, retry_seconds=retry_seconds)
    async with opening as fleet:
        while fleet.failures() and time.monotonic() < until:
            await fleet.look()
        if not any(one.reads for one in fleet.servers()):
            reasons = "; ".join(_failures(fleet))
            raise NotReadyError(f"no service responds at {arguments.log} ({reasons})")
        yield fleet


class RespondingServers:
    """The servers of a fleet that respond. What fails at one is printed, and the others are not concerned."""

    def __init__(self, fleet: RecordLogFleet) -> None:
        """Print to standard error which servers do not respond."""
        failures, servers = _failures(fleet), fleet.servers()
        for failure in failures:
            print(f"mrecordlog: {failure}", file=sys.stderr)
        self._codes = {NOT_READY} if failures or not all(one.reads for one in servers) else set()
        self._responding = [
            RespondingServer(one.name, one.log_id, fleet.client(one.log_id)) for one in servers if one.reads
        ]

    async def each(
        self, call: Callable[[RecordLogClient], Awaitable[T]], missing: Missing = (QueueNotFoundError,)
    ) -> AsyncIterator[tuple[RespondingServer, T]]:
        """Yield what *call* returns for each server, one after the other, without those that have nothing of the name.

        Args:
            call: What to do at a server. If it fails there, that is printed, and the next server is called.
            missing: The errors that say that a server has nothing of the name.

        Yields:
            The server, and what *call* has returned.

        Raises:
            RecordLogError: One of *missing*, if no server has anything of the name.
        """
        absent: RecordLogError | None = None
        is_known = False
        for one in self._responding:
            try:
                result = await call(one.client)
            except missing as error:
                absent = error
            except RecordLogError as error:
                is_known = True
                self.fail(one, error)
            else:
                is_known = True
                yield one, result
        if absent is not None and not is_known:
            raise absent

    def fail(self, one: RespondingServer, error: RecordLogError) -> None:
        """Print to standard error what failed at a server, and remember it for the exit code."""
        print(f"mrecordlog: {one.server}: {explain(error, None)}", file=sys.stderr)
        self._codes.add(NOT_READY if says_not_ready(error) else FAILED)

    def leave_out(self, log_ids: Container[str]) -> None:
        """Print to standard error which servers stopped responding, so that not all of their records were read."""
        for one in self._responding:
            if one.log_id in log_ids:
                print(f"mrecordlog: {one.server}: not read to its end: it stopped responding", file=sys.stderr)
                self._codes.add(NOT_READY)

    def code(self) -> int:
        """Return the exit code: failed if a server refused, not ready if one did not respond, at the start or later."""
        return FAILED if FAILED in self._codes else NOT_READY if self._codes else FINE


async def change(
    arguments: argparse.Namespace,
    call: Callable[[Any], Awaitable[Done]],
    *,
    create: bool = False,
    limits_of: str | None = None,
    missing: Missing = (QueueNotFoundError,),
) -> int:
    """Make a change to the log that LOG names, or to each of several, and print what was done.

    Args:
        arguments: LOG, and whether to print JSON.
        call: Makes the change, in a log without its records or through a client.
        create: Create the log in a directory that has none.
        limits_of: See `open_placed_target`.
        missing: See `RespondingServers.each`.
    """
    if not is_several(arguments.log):
        async with open_placed_target(arguments, create=create, limits_of=limits_of) as log:
            facts, text = await call(log)
        print(json.dumps(facts) if arguments.json else text)
        return FINE
    async with open_fleet(arguments) as fleet:
        servers = RespondingServers(fleet)
        async for one, (facts, text) in servers.each(call, missing):
            fact = {"server": one.server, **facts}
            print(json.dumps(fact) if arguments.json else f"{one.server}: {text}", flush=True)
        return servers.code()


def _failures(fleet: RecordLogFleet) -> list[str]:
    """Return why each server that does not respond does not, with what to do about a token."""
    advice = "; name a file with the service's token: --token-file FILE, or --token-file NAME=FILE for NAME=URL"
    return [f"{place}: {why}{advice if '(401 ' in why else ''}" for place, why in sorted(fleet.failures().items())]
