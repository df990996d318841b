"""`Service`: one log and everything that its routes share: state, limits, waiting clients, counters.

States: recovering (responds 503 with the progress) → open → closing (tails end, requests finish) → closed. A failed log
stays readable. The service may own the log (`open`) or serve one that its host opened (`attach`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from importlib.metadata import version
from time import monotonic
from typing import Any

from mrecordlog_async.engine.intake.refusals import CALM_SECONDS, Episode, Episodes
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import LogState, RecoveryProgress
from mrecordlog_async.options import check_type
from mrecordlog_async.protocol.problems import ProblemError, retry, too_many
from mrecordlog_async.service.bodies import Bodies
from mrecordlog_async.service.http import HttpRequest
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.reading.earlier_lists import EarlierLists
from mrecordlog_async.service.reading.queue_names import Names
from mrecordlog_async.service.security import EmbeddedGuard, Guard
from mrecordlog_async.service.sending import Sending
from mrecordlog_async.service.splitting import Splitter

logger = logging.getLogger("mrecordlog_async.service")

VERSION = version("mrecordlog_async")
"""Read once, because it comes from a file."""


HEAVY = 2
"""Plans, fetches and truncates of many queues that run at once. Others wait in line, which bounds their memory."""


@dataclass(slots=True)
class ConnectionCounts:
    """Counts of connections. refused: above the limit. cut: idle or in a handshake too long, or holding too much.

    unread_bytes: received and not yet processed, or sent and not read. known: the service accepts its connections
    itself; those of an application are not counted. handshakes: TLS handshakes that began.
    """

    known: bool = False
    open: int = 0
    unread_bytes: int = 0
    refused: int = 0
    cut: int = 0
    handshakes: int = 0


READS = 4
"""Responses that are read at once, each into a part of the room that is left for responses."""


class WakeReason(Enum):
    """Reason for the end of a wait for records."""

    RECORDS = auto()
    TIMEOUT = auto()
    ENDED = auto()
    """The queue is deleted, or sealed and read, or the log is drained or closing."""
    LEFT = auto()
    """The client has left."""


class RefusedRequests:
    """Logs what a service refuses before the log sees it: a line where an episode of one kind begins, and at its end.

    They have no valid token, a foreign Host, or are above a limit of the service. The log logs what it refuses itself.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._episodes = Episodes(_log_end, clock)

    def note(self, reason: str, text: str) -> None:
        """Count a refused request; log *text* if it begins an episode."""
        if self._episodes.note(reason, 1):
            logger.warning("requests are refused: %s", text, extra={"facts": {"event": "refusing", "reason": reason}})

    def check(self) -> None:
        """End the episodes that are over. Called every second, where something calls it."""
        self._episodes.check()


def _log_end(reason: str, episode: Episode) -> None:
    facts = {"event": "accepting", "reason": reason, "requests": episode.count, "seconds": episode.seconds}
    logger.info(
        "no request was refused for %g s; %d were refused within %g s (reason: %s)",
        CALM_SECONDS,
        episode.count,
        episode.seconds,
        reason,
        extra={"facts": facts},
    )


class Service:
    """The state that the routes of one log share. Belongs to one event loop."""

    def __init__(self, options: ServiceOptions | None = None) -> None:
        self.options = ServiceOptions() if options is None else options
        check_type("options", self.options, ServiceOptions)
        self.guard: Guard | EmbeddedGuard = Guard(self.options.tokens, self.options.hosts)
        self.bodies = Bodies(self.options)
        self.splitter = Splitter(self.options.body_records)
        self.sending = Sending(self.options)
        self.names = Names()
        self.earlier_lists = EarlierLists()
        self.heavy, self.heaviest = asyncio.Semaphore(HEAVY), asyncio.Lock()
        self.reads = asyncio.Semaphore(READS)
        self.fraction = 0.0
        self.waits_for = ""  # the process that has the log open while opening waits for it
        self.connections = ConnectionCounts()
        self.tails = 0
        self.requests = 0
        self.active = 0  # requests being served
        self.problems: dict[int, int] = {}  # responses other than success, by status
        self.refused = RefusedRequests()
        self.name = self.options.name or socket.gethostname()
        self.log_id = ""  # the log's public id, once it is attached
        self.opening = ""  # random, new for every attached log: positions seen under another value may have gone back
        self.opened: dict[int, int] = {}  # queue id → its next position when the log was attached
        self._log: MultiRecordLog | None = None
        self._attached_at: float | None = None
        self._shutting_down = asyncio.Event()
        self._finished = asyncio.Event()

    # Start and shutdown.

    async def open(self, directory: str | os.PathLike[str], **options: Any) -> MultiRecordLog:
        """Open the log in *directory* (with the options of `MultiRecordLog.open`) and serve it."""
        log = await MultiRecordLog.open(directory, on_progress=self._on_progress, **options)
        self.attach(log)
        return log

    def attach(self, log: MultiRecordLog) -> None:
        """Serve *log*, which the caller opened and will close."""
        self._shutting_down.clear()  # an application of aiohttp may start again
        self.opening, self.opened = secrets.token_hex(8), log.inspection.next_positions()
        self.log_id = log.inspection.public_id
        self._log = log
        self._attached_at = monotonic()
        self.fraction = 1.0

    def begin_shutdown(self) -> None:
        """Stop being ready and end every wait for records; other requests continue."""
        self._shutting_down.set()

    def end_request(self) -> None:
        """Count a request as served."""
        self.active -= 1
        if not self.active and self._shutting_down.is_set():
            self._finished.set()

    async def finished(self) -> None:
        """Wait, during a shutdown, until no request is being served."""
        if self.active:
            await self._finished.wait()

    def _on_progress(self, progress: RecoveryProgress) -> None:
        self.fraction, self.waits_for = progress.fraction, progress.waits_for

    # State.

    @property
    def state(self) -> LogState:
        """State of the log; CLOSING from the start of a shutdown."""
        if self._log is None:
            return LogState.RECOVERING
        return (
            LogState.CLOSING if self._shutting_down.is_set() and self._log.state is LogState.OPEN else self._log.state
        )

    @property
    def uptime_seconds(self) -> float:
        """Seconds that the log has been served; 0 during recovery."""
        return 0.0 if self._attached_at is None else monotonic() - self._attached_at

    @property
    def shutting_down(self) -> bool:
        """True if the service is shutting down."""
        return self._shutting_down.is_set()

    @property
    def log(self) -> MultiRecordLog:
        """The log; raises the 503 problem during recovery."""
        if self._log is None:
            done = f"the log is recovering, {self.fraction:.0%} done"
            detail = f"{f'the log is still open in {self.waits_for}' if self.waits_for else done}; try again"
            raise retry(503, "recovering", detail, state="recovering", fraction=round(self.fraction, 4))
        return self._log

    @property
    def log_or_none(self) -> MultiRecordLog | None:
        """The log; None during recovery."""
        return self._log

    def check_opening(self, known: str | None) -> None:
        """Raise the 409 problem for a request that refers to the log as it was before it was reopened."""
        if known is not None and known != self.opening:
            raise ProblemError(409, "reopened", "the log was reopened since it was listed; list it again")

    def check_log(self, expected: str | None) -> None:
        """Raise the 412 problem if the request is meant for another log: positions of one say nothing about another."""
        if expected is not None and expected != self.log.inspection.public_id:
            detail = f"this is the log {self.log_id} of {self.name!r}, and the request is for {expected[:64]!r}: "
            raise ProblemError(412, "other_log", detail + "look up which address has that log", log=self.log_id)

    def check_room(self, size: int) -> None:
        """Raise the 429 problem if *size* more bytes do not fit in memory. Called before a large body is read."""
        self.log.inspection.check_memory(size)

    # Waiting.

    async def wait_for(
        self, request: HttpRequest, reach: Callable[[], Coroutine[Any, Any, bool]], seconds: float
    ) -> WakeReason:
        """Wait *seconds* at most for what *reach* waits for, such as `log.wait_for`; a shutdown ends it."""
        if self.shutting_down:
            return WakeReason.ENDED
        waits = [asyncio.ensure_future(one) for one in (reach(), self._shutting_down.wait())]
        waiting, gone = waits[0], request.gone()
        try:
            if gone.done():
                return WakeReason.LEFT
            await asyncio.wait((*waits, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            # Asked before the shutdown: records that arrived together with it are still sent.
            if waiting.done():
                return WakeReason.RECORDS if waiting.result() else WakeReason.ENDED
            if gone.done():
                return WakeReason.LEFT
            return WakeReason.ENDED if self.shutting_down else WakeReason.TIMEOUT
        except LogClosedError:
            return WakeReason.ENDED
        finally:
            for one in waits:
                one.cancel()

    async def wait_for_shutdown(self, seconds: float) -> None:
        """Sleep for *seconds*, or until the service shuts down."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._shutting_down.wait()

    @contextmanager
    def waiting_client(self) -> Iterator[None]:
        """Count one more waiting client until the end of the block; raise the 429 problem if there are too many."""
        if self.tails >= self.options.tails:
            raise too_many("tails", self.tails, self.options.tails)
        self.tails += 1
        try:
            yield
        finally:
            self.tails -= 1
