"""What systemd wants to hear from a `Type=notify` service: a datagram to the socket that it names."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(*lines: str) -> None:
    """Send *lines* (`READY=1`, `STATUS=…`) if the process runs under systemd; never fails."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or address[0] not in "@/":
        return
    if address[0] == "@":
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.connect(address)
        sender.send("\n".join(lines).encode())
