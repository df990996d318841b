"""Notifications for systemd (`Type=notify`): datagrams to the socket that systemd names.

`Status` checks the service once per second and reports what changed: recovery progress, a failed log, a disk that is
full or does not respond.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from time import monotonic

from mrecordlog_async.model import LogState
from mrecordlog_async.service.service import Service

EXTEND_TIMEOUT = "EXTEND_TIMEOUT_USEC=30000000"

CALM_SECONDS = 30.0
"""The disk counts as full until no append was refused for this long."""


def notify(*lines: str) -> None:
    """Send *lines* (`READY=1`, `STATUS=…`) if the process runs under systemd; never fails."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or address[0] not in "@/":
        return
    if address[0] == "@":
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        sender.send("\n".join(lines).encode(errors="backslashreplace"))  # a path in it may have any bytes


class Status:
    """Report what changed in a service since the last check."""

    def __init__(self, service: Service, address: str, clock: Callable[[], float] = monotonic) -> None:
        self._service = service
        self._address = address
        self._clock = clock
        self._failed = False
        self._refused = 0  # responses 507 so far
        self._refused_at = 0.0
        self._full = False
        self._stalls = False

    def check(self) -> None:
        """Check once; called every second."""
        if self._service.state is LogState.RECOVERING:
            waits_for, read = self._service.waits_for, f"recovering, {self._service.fraction:.0%} read"
            notify(f"STATUS=waiting for {waits_for}" if waits_for else f"STATUS={read}", EXTEND_TIMEOUT)
        self._check_failure()
        self._check_stall()
        self._check_full_disk()

    def _check_failure(self) -> None:
        log = self._service.log_or_none
        if log is None or log.inspection.failure is None or self._failed:
            return
        self._failed = True  # the engine has already logged it
        cause = " ".join(str(log.inspection.failure).split())
        notify(f"STATUS=failed: {cause}; nothing is stored until the service is restarted; reads work")

    def _check_stall(self) -> None:
        """Report a disk that does not respond, and that it responds again."""
        log, limit = self._service.log_or_none, self._service.options.stall_seconds
        stalls = log is not None and 0 < limit <= log.inspection.under_way_seconds
        if stalls is not self._stalls and not self._failed:
            self._stalls = stalls
            notify("STATUS=the disk does not respond" if stalls else f"STATUS=serving on {self._address}")

    def _check_full_disk(self) -> None:
        refused, now = self._service.problems.get(HTTPStatus.INSUFFICIENT_STORAGE, 0), self._clock()
        if refused != self._refused:
            self._refused, self._refused_at = refused, now
            self._report_full(True)
        elif now - self._refused_at >= CALM_SECONDS:
            self._report_full(False)

    def _report_full(self, full: bool) -> None:
        if full is not self._full and not self._failed:
            self._full = full
            notify("STATUS=the disk is full, appends are refused" if full else f"STATUS=serving on {self._address}")
