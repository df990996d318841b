"""The sockets of the service."""

from __future__ import annotations

import asyncio
import errno
import socket

BACKLOG = 4_096
"""Connections that wait to be accepted; the system may allow fewer (`net.core.somaxconn`)."""


async def bind(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of *host*; raise OSError if there is none."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    without: OSError | None = None  # the system has no such address: IPv6 may be off
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                without = error
        if not sockets and without is not None:
            raise without
    except BaseException:
        for one in sockets:
            one.close()
        raise
    return sockets


def bind_unix(path: str) -> socket.socket:
    """Return a listening Unix socket at *path*."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(path)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
