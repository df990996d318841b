"""Connect to a host that has several addresses: they are raced, so that a dead one holds up nobody (RFC 8305).

An address that does not respond is given `STAGGER_SECONDS`, then the next one is tried next to it. The first connection
that is made is used. One race for tasks and one for threads; both raise the last failure if all have failed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
from collections import deque
from collections.abc import Iterable
from itertools import chain, zip_longest
from time import monotonic
from typing import Any, NamedTuple

from mrecordlog_async.client.http1 import NOT_CONNECTED
from mrecordlog_async.client.interrupts import has_failed

STAGGER_SECONDS = 0.25

NO_ADDRESS = "the host name has no address"


class Address(NamedTuple):
    """An address of a host, with its port."""

    family: int
    name: Any  # what the family has: two members, or four


def resolved(host: str, port: int, flags: int = 0) -> list[Address]:
    """Return the addresses of a host. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return in_turn((family, name) for family, _, _, _, name in found)


def in_turn(found: Iterable[tuple[int, Any]]) -> list[Address]:
    """Return addresses in their order, the families by turns: one whose network is down is left at once."""
    by_family: dict[int, list[Address]] = {}
    for family, name in dict.fromkeys(found):
        by_family.setdefault(family, []).append(Address(family, name))
    return [each for each in chain.from_iterable(zip_longest(*by_family.values())) if each is not None]


async def connect(host: str, port: int) -> socket.socket:
    """Return a socket that is connected, for the running event loop. Raises OSError; the caller limits the time."""
    loop = asyncio.get_running_loop()
    try:
        addresses = resolved(host, port, socket.AI_NUMERICHOST)  # takes no time
    except socket.gaierror:
        addresses = await loop.run_in_executor(None, resolved, host, port)
    if len(addresses) == 1:
        return await _connect_one(addresses[0])
    waiting, racing = deque(addresses), set[asyncio.Task[socket.socket]]()
    failure: BaseException | None = None
    try:
        while waiting or racing:
            if waiting:
                racing.add(loop.create_task(_connect_one(waiting.popleft())))
            await asyncio.wait(
                racing, timeout=STAGGER_SECONDS if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in racing if task.done()]:
                racing.discard(task)
                failure = task.exception()
                if failure is None:
                    return task.result()
        raise failure or OSError(NO_ADDRESS)
    finally:
        for task in racing:
            if not task.cancel() and task.exception() is None:  # it has ended meanwhile
                task.result().close()


async def _connect_one(address: Address) -> socket.socket:
    plug = _socket(address)
    try:
        await asyncio.get_running_loop().sock_connect(plug, address.name)
    except BaseException:
        plug.close()
        raise
    return plug


def connect_unix(path: str) -> socket.socket:
    """Return a socket that is connected, at once. Raises OSError.

    A service with too many connections to accept raises BlockingIOError; asyncio takes that for a connection.
    """
    plug = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    plug.setblocking(False)
    try:
        plug.connect(path)
    except BaseException:
        plug.close()
        raise
    return plug


def connect_blocking(host: str, port: int, seconds: float) -> socket.socket:
    """Return a socket that is connected, for the calling thread. Raises OSError, TimeoutError after *seconds*."""
    end = monotonic() + seconds
    waiting = deque(resolved(host, port))
    racing, poll = dict[int, socket.socket](), select.poll()
    failure = OSError(NO_ADDRESS)
    try:
        while waiting or racing:
            if waiting:
                try:
                    plug = _begun(waiting.popleft())
                except OSError as error:
                    if not has_failed(error):
                        raise
                    failure = error
                    continue
                racing[plug.fileno()] = plug
                poll.register(plug, select.POLLOUT)
            left = end - monotonic()
            if left <= 0:
                raise TimeoutError(NOT_CONNECTED)
            for handle, _ in poll.poll(1_000 * min(left, STAGGER_SECONDS if waiting else left)):
                poll.unregister(handle)
                number = racing[handle].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not number:
                    return racing.pop(handle)
                racing.pop(handle).close()
                failure = OSError(number, os.strerror(number))
        raise failure
    finally:
        for plug in racing.values():
            plug.close()


def _begun(address: Address) -> socket.socket:
    """Return a socket that connects. Raises OSError for what it meets at once."""
    plug = _socket(address)
    number = plug.connect_ex(address.name)
    if number not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
        plug.close()
        raise OSError(number, os.strerror(number))
    return plug


def _socket(address: Address) -> socket.socket:
    plug = socket.socket(address.family, socket.SOCK_STREAM)
    plug.setblocking(False)
    plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plug
