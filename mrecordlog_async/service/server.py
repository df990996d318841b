"""`serve`: a log directory as a process, from listening to the exit code.

1. Listen at once. Until the log is recovered, `/readyz` reports the progress and routes that need the log respond 503.
2. Recover in the background. If the log cannot be opened (damage, a lock, a disk error), the process ends.
3. On SIGTERM, SIGINT or SIGHUP (a closed terminal, unless `nohup` hides it): not ready → tails end → no new connections
   → requests finish → sync → close, with a deadline. A second signal ends the wait for requests, not the close.
4. If the log fails while the service runs, reads still work for `failure_grace_seconds`. Then the process ends like
   after a signal, with its own exit code, so that systemd or Kubernetes starts it again: only that recovers the log.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from mrecordlog_async.errors import LogClosedError, LogFailedError
from mrecordlog_async.service.app import App
from mrecordlog_async.service.connections import Connections
from mrecordlog_async.service.listening import bind, bind_unix
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.security import is_loopback
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.tls import Certificate, use_small_buffers
from mrecordlog_async.service.watching.systemd import EXTEND_TIMEOUT, Status, notify
from mrecordlog_async.service.watching.trim_memory import MemoryTrimmer
from mrecordlog_async.service.watching.watch import watch

logger = logging.getLogger("mrecordlog_async.serve")

LOG_FAILED = 6
"""The exit code of a service whose log failed: starting it again recovers. Like those in `cli/shell/exit_codes`."""
FILES_RESERVED = 40
"""Descriptors for all but the connections: the log's files, the event loop, modules that are imported late."""

CLOSE_SECONDS_MIN = 5.0
"""Least time for the last sync and the CLOSED marker, however short `drain_seconds` is."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The address to listen at, and the log to open.

    Args:
        directory: The directory of the log.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        uds: Path of a Unix socket, instead of host and port.
        access_log: Log a line per request.
        failure_grace_seconds: How long a failed log can be read before the process ends; 0 leaves it to a signal.
        certificate: Serve HTTPS with it; None for plain HTTP.
        options: Limits, tokens and host names.
        log_options: Keyword arguments of `MultiRecordLog.open`.
    """

    directory: str
    host: str = "127.0.0.1"
    port: int = 8080
    uds: str | None = None
    access_log: bool = False
    failure_grace_seconds: float = 5.0
    certificate: Certificate | None = None
    options: ServiceOptions = field(default_factory=ServiceOptions)
    log_options: dict[str, Any] = field(default_factory=dict)


class ExposedError(ValueError):
    """The service would be reachable from other machines without a token."""


def check_exposure(settings: ServeSettings) -> None:
    """Raise ExposedError if other machines could use the log without a token."""
    if settings.uds is None and not settings.options.tokens and not is_loopback(settings.host):
        raise ExposedError(
            f"{settings.host} can be reached from other machines and there is no token: "
            "pass --token-file, or listen on 127.0.0.1 or on a Unix socket (--uds)"
        )


async def serve(settings: ServeSettings, *, on_listening: Callable[[str], None] | None = None) -> int:
    """Serve until a signal arrives.

    Args:
        settings: Where to listen and what to open.
        on_listening: Called with the address once connections are accepted; recovery may still run.

    Returns:
        The exit code: 0, `LOG_FAILED` if the log failed, or 1 if it could not be closed in time.

    Raises:
        ExposedError: Other machines could use the log without a token.
        OSError: Listening failed.
        RecordLogError: The log could not be opened.
    """
    check_exposure(settings)
    settings = within_file_limit(settings, raise_file_limit())
    service = Service(settings.options)
    connections = Connections(App(service), access_log=settings.access_log)
    stop = _Stop()  # before anything listens: from the first connection on, a signal ends the service in order
    try:
        try:
            await _serve_until_stopped(service, settings, connections, stop, on_listening)
        finally:
            stop.closing = True
            code = await _close(service, max(settings.options.drain_seconds, CLOSE_SECONDS_MIN))
    finally:
        stop.release()  # only now: a terminal that closes sends SIGHUP twice, and the second must not end the close
    return code


async def _serve_until_stopped(
    service: Service,
    settings: ServeSettings,
    connections: Connections,
    stop: _Stop,
    on_listening: Callable[[str], None] | None,
) -> None:
    """Listen, recover and serve until the first signal; then accept nothing more and let requests finish."""
    listeners = await _listen(settings, connections)
    address = _address(settings, listeners)
    notify(f"STATUS=listening on {address}, recovering", EXTEND_TIMEOUT)
    if on_listening is not None:
        on_listening(address)
    checks = (
        connections.check,
        Status(service, address).check,
        service.refused.check,
        MemoryTrimmer(service).check,
    )
    watching = asyncio.create_task(watch(*checks))
    renewing = asyncio.create_task(settings.certificate.watch()) if settings.certificate is not None else None
    try:
        await _recover(service, settings, stop, address)
        await _end_of_service(service, stop, settings.failure_grace_seconds)
    finally:
        notify("STOPPING=1", EXTEND_TIMEOUT)
        _remove_socket(settings)  # before it is closed: after that, another service may listen at the path
        await connections.end(settings.options.drain_seconds, stop.second)
        watching.cancel()
        if renewing is not None:
            renewing.cancel()


async def _end_of_service(service: Service, stop: _Stop, grace_seconds: float) -> None:
    """Wait for the first signal; or, if the log fails, for as long as it may be read after that."""
    log = service.log_or_none
    if log is None:  # a signal came while it was being recovered
        return
    waits = [asyncio.create_task(log.failed()), asyncio.create_task(stop.first.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    waits[0].cancel()
    if stop.first.is_set():
        return
    facts = {"event": "ending", "grace_seconds": grace_seconds, "exit_code": LOG_FAILED}
    if not grace_seconds:
        logger.error("the log failed; it is served for reads until the service is stopped (failure_grace is 0)")
    else:
        ends = "the log failed; it is served for reads for %g s, then the process ends with code %d to be restarted"
        logger.error(ends, grace_seconds, LOG_FAILED, extra={"facts": facts})
    await asyncio.wait(waits[1:], timeout=grace_seconds or None)
    waits[1].cancel()


def raise_file_limit() -> int:
    """Raise the limit of open files, one for each connection, to the most that the system allows; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def within_file_limit(settings: ServeSettings, files_max: int) -> ServeSettings:
    """Lower the limit of connections to what *files_max* allows: no connection may take the log's descriptors."""
    most = max(files_max - FILES_RESERVED, 1)
    options = settings.options
    if files_max == resource.RLIM_INFINITY or options.connections <= most:
        return settings
    logger.warning(
        "the limit of open files is %d: %d connections are admitted instead of %d; raise it (ulimit -n, LimitNOFILE)",
        files_max,
        most,
        options.connections,
        extra={"facts": {"event": "few_files", "files_max": files_max, "connections": most}},
    )
    return replace(settings, options=replace(options, connections=most))


class _Stop:
    """The signals: the first starts the shutdown, the second ends its wait for requests."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            self._numbers.append(signal.SIGHUP)
        for number in self._numbers:
            self._loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        again = self.first.is_set()
        if self.closing:
            text = "%s received again: the log is being closed" if again else "%s received: the log is being closed"
        elif again:
            text = "%s received again: running requests are dropped"
        else:
            text = "%s received: finishing requests, then closing"
        logger.info(text, number.name, extra={"facts": {"event": "signal", "signal": number.name}})
        (self.second if again else self.first).set()

    def release(self) -> None:
        for number in self._numbers:
            self._loop.remove_signal_handler(number)


async def _listen(settings: ServeSettings, connections: Connections) -> list[socket.socket]:
    if settings.uds is None:
        try:
            sockets = await bind(settings.host, settings.port)
        except OSError as error:
            place = f"cannot listen on {settings.host} port {settings.port}"
            advice = "choose another with --host and --port, or stop what listens there"
            raise OSError(error.errno, f"{place}: {_reason(error)}; {advice}") from None
        context = None if settings.certificate is None else settings.certificate.context
        if context is not None:
            use_small_buffers()
        connections.listen(sockets, context)
        return sockets
    _remove_stale_socket(settings.uds)
    before = os.umask(0o177)  # only our own user may connect, from the first moment on
    try:
        sockets = [bind_unix(settings.uds)]
    except OSError as error:
        place, advice = f"cannot listen on unix:{settings.uds}", "choose another path with --uds"
        raise OSError(error.errno, f"{place}: {_reason(error)}; {advice}") from None
    finally:
        os.umask(before)
    connections.listen(sockets)
    return sockets


def _reason(error: OSError) -> str:
    """Return what went wrong. Numbers of name lookups are negative, and a socket's path that is too long has none."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)


def _remove_stale_socket(path: str) -> None:
    """Remove the socket of a killed service; raise OSError if one listens, or for a file that is not a socket."""
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise FileNotFoundError(errno.ENOENT, "the directory of the socket does not exist; create it", path)
    if not os.path.lexists(path):
        return
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "this is not a socket; choose another path, or remove it", path)
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "another service listens on this socket; stop it, or choose another path", path)


def _remove_socket(settings: ServeSettings) -> None:
    if settings.uds is not None:
        with suppress(FileNotFoundError):
            os.unlink(settings.uds)


def _address(settings: ServeSettings, listeners: list[socket.socket]) -> str:
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'http' if settings.certificate is None else 'https'}://{host}:{listeners[0].getsockname()[1]}"


async def _recover(service: Service, settings: ServeSettings, stop: _Stop, address: str) -> None:
    """Open the log, unless a signal comes first."""
    opening = asyncio.create_task(service.open(settings.directory, **settings.log_options))
    stopping = asyncio.create_task(stop.first.wait())
    try:
        await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            opening.result()
            notify("READY=1", f"STATUS=serving on {address}")
    finally:
        stopping.cancel()
        if opening.cancel():  # a signal came first; recovery stops at its next segment and releases the directory
            with suppress(asyncio.CancelledError):
                await opening


async def _close(service: Service, seconds: float) -> int:
    """Close the log and return the exit code. The log's thread does not delay the exit if the disk hangs."""
    log = service.log_or_none
    if log is None:
        return 0
    try:
        async with asyncio.timeout(seconds):
            with suppress(LogClosedError, LogFailedError):  # `close` reports a failure
                await log.drain()
            await log.close()
    except TimeoutError:
        text = "the disk did not respond within %g s: records that were not acknowledged may be lost"
        logger.error(text, seconds, extra={"facts": {"event": "not_closed", "exit_code": 1}})
        return 1
    except LogFailedError as failed:
        logger.error("%s", failed, extra={"facts": {"event": "ended", "exit_code": LOG_FAILED}})
        return LOG_FAILED
    if log.inspection.failure is not None:
        facts = {"event": "ended", "exit_code": LOG_FAILED}
        logger.error(
            "the log failed: %s; start the service again to recover", log.inspection.failure, extra={"facts": facts}
        )
        return LOG_FAILED
    return 0
