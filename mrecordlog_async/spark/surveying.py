"""Surveys the servers of a drain or a stream, again and again: what each has, and which of them to leave out.

All are asked at once, each in its own thread. One that is down or slow is left out of a batch until it responds. What
the logs have shown decides which of them may be read (`losses`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.log_server import FETCH_RECORDS, LogListing, LogServer
from mrecordlog_async.spark.losses import Standing, arrange, held_back
from mrecordlog_async.spark.options import BYTES, RECORDS
from mrecordlog_async.spark.planning import Ends, Includes, PlannedBatch, Survey, Wish, everything
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.server_thread import ServerThread
from mrecordlog_async.spark.state import DrainState, LogState

logger = logging.getLogger("mrecordlog_async.spark")

WAIT_SECONDS = 1.0
"""How long the others wait for a server that does not respond in time."""

FIRST_WAIT_SECONDS = 25.0
"""The same, where none has responded yet: it is longer than what a request may take."""


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """What a drain does.

    Attributes:
        records: Records of a batch at most.
        bytes: Their payload bytes at most.
        includes: Whether a queue is subscribed.
        truncate: Release what is stored.
        allow_loss: Continue where records were removed before they were stored.
        accept_went_back: Store all of a log again that went back.
        forget: Logs that are lost for good, by the first digits of their ids.
        skip_down: Start and end without servers that are down.
        min_records: Wait until a batch has this many records …
        max_delay_seconds: … or the first of them has waited for this long.
    """

    records: int = RECORDS
    bytes: int = BYTES
    includes: Includes = everything
    truncate: bool = True
    allow_loss: bool = False
    accept_went_back: bool = False
    forget: tuple[str, ...] = ()
    skip_down: bool = False
    min_records: int = 1
    max_delay_seconds: float = 60.0


@dataclass(slots=True)
class Trouble:
    """Servers that are left out, each with the reason.

    Attributes:
        down: They do not respond; each is tried again.
        held: Their logs are not what was read, or cannot be read.
    """

    down: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)


class Surveyor:
    """The servers of one drain or stream. For one thread.

    Attributes:
        settings: What may be read.
        trouble: Which servers are left out now.
        listed: The listings of the last look; None for a server whose log was not listed or is held back.
        accepted: Logs that went back, and were accepted: each may do so once.
        backlog: About how many records of each server the batch of the last look leaves.
        threads: The servers, by name.
        begins: Returns where reading begins in the queues of a log that is new; None for their first records.
        limits: Records of a batch at most, and their payload bytes.
        piece_records: Records of a range at most, where positions have gaps.
        ends: Where a run ends that reads what the logs held at its start; None for one that does not end.
        is_outdated: Something changed during the last look: another one is needed to know whether a run has ended.
        failures: The last failure of each server.
        batches: How many batches were taken.
        first_wait_seconds: How long the first look waits for servers.
        before_release: Called before anything is truncated or acknowledged.
    """

    def __init__(self, servers: ServerSet, settings: DrainSettings, report: Callable[[str], None]) -> None:
        """Request nothing yet. report: called with a sentence for people."""
        self.settings, self._servers, self._report = settings, servers, report
        self.trouble, self.backlog = Trouble(), dict[str, int]()
        self.threads = dict[str, ServerThread]()
        self.listed, self.accepted = dict[str, LogListing | None](), set[str]()
        self._releasing = dict[Future[None], str]()
        self.ends: Ends | None = None
        self.begins: Callable[[LogServer, LogListing], Mapping[str, int]] | None = None
        self.limits: tuple[int | None, int | None] = (settings.records, settings.bytes)
        self.piece_records = FETCH_RECORDS
        self.failures = dict[str, ServerDownError | ServiceRefusedError]()
        self.before_release: Callable[[], None] = lambda: None
        self._has_begun = self.is_outdated = False
        self.batches = 0
        self.first_wait_seconds = FIRST_WAIT_SECONDS
        self._waits_since: float | None = None

    def look(self, state: DrainState) -> tuple[dict[str, Survey], dict[str, str]]:
        """Survey all servers at once; return what those have that responded in time, and why others are left out.

        Raises:
            ServerDownError, ServiceRefusedError: a server that was never read does not respond at the start.
        """
        now, self.is_outdated = _clock(), False
        self.threads = {each.server.name: each for each in self._servers()}
        shares = self._shares()
        asked = {name: each.asked(state, self._wish(shares[name]), now) for name, each in self.threads.items()}
        waited = [job for name, job in asked.items() if job is not None and not self.threads[name].is_late]
        wait(waited, self.first_wait_seconds if not self._has_begun else WAIT_SECONDS)
        found, down = dict[str, Survey](), dict[str, str]()
        for name, error in self._servers.unfound.items():
            down[name], self.failures[name] = error.reason, error
        for name, job in asked.items():
            thread = self.threads[name]
            if job is None:
                down[name] = self.trouble.down.get(name, "it does not respond")
            elif not job.done():
                thread.is_late = True
                down[name] = "it does not respond in time"
            else:
                thread.taken()
                self._take(thread, job, state, found, down)
        self._has_begun = True
        for name, error in self.vanished(state, found).items():
            down[name], self.failures[name] = error.reason, error
        return found, down

    def vanished(self, state: DrainState, found: Mapping[str, Survey]) -> dict[str, ServerDownError]:
        """Return the servers that have no address any more: their DNS names had them in an earlier run."""
        logs, names = {each.listing.log for each in found.values()}, self._servers.origins
        return {
            each.server: ServerDownError(each.server, names[each.origin], f"no address has its log, {log}")
            for log, each in state.logs.items()
            if each.origin in names and each.server not in self.threads
            if log not in logs and not log.startswith(self.settings.forget)
        }

    def _take(
        self,
        thread: ServerThread,
        job: Future[Survey],
        state: DrainState,
        found: dict[str, Survey],
        down: dict[str, str],
    ) -> None:
        name = thread.server.name
        try:
            result = job.result()
        except (ServerDownError, ServiceRefusedError) as error:
            is_known = any(each.server == name for each in state.logs.values())
            if not self._has_begun and not is_known and not self.settings.skip_down:
                raise  # its address may be wrong
            thread.absence.begin(_clock())
            down[name], self.failures[name] = error.reason, error
            return
        thread.absence.end()
        is_current = result.known is state.logs.get(result.listing.log)
        if is_current:
            found[name] = result  # otherwise it was made from an older state: the next step has a new one
        self.is_outdated |= result.is_outdated or not is_current

    def _wish(self, share: float) -> Wish:
        """Return what may be planned of a server with this *share* of the limits."""
        settings = self.settings
        records, size = (each and max(1, round(each * share)) for each in self.limits)
        return Wish(
            records,
            size,
            self.piece_records,
            settings.includes,
            settings.accept_went_back,
            self.accepted,
            self.ends,
            self.begins,
        )

    def _shares(self) -> dict[str, float]:
        """Return the share of the limits of each server, by what each had left at the last look.

        A server that had nothing left may have something now. The batch as a whole keeps the limits.
        """
        total, count = sum(self.backlog.values()), len(self.threads)
        weights = {
            name: max(self.backlog.get(name, 0) / total if total else 1.0 / count, 0.5 / count) for name in self.threads
        }
        whole = sum(weights.values())
        return {name: weight / whole for name, weight in weights.items()}

    def readable(self, state: DrainState, surveys: Mapping[str, Survey], down: dict[str, str]) -> dict[str, Survey]:
        """Return the surveys of logs that may be read; report servers that are left out from now on, or are back."""
        standing = arrange(state, {name: each.listing for name, each in surveys.items()})
        found = self._intact(surveys, standing)
        refused = {name: each.refused.reason for name, each in self.threads.items() if name in down and each.refused}
        down = {name: why for name, why in down.items() if name not in refused}
        self._note(Trouble(down, standing.held | refused))
        self.listed = {
            name: found[name].listing if name in found else None
            for name in self.threads
            if name in found or name in standing.held or name not in surveys
        }
        self.backlog = {name: max(0, each.backlog - each.records) for name, each in surveys.items()}
        # A batch may have room for the first ones only: each is the first one in turn.
        names = sorted(found)
        first = self.batches % max(1, len(names))
        return {name: found[name] for name in names[first:] + names[:first]}

    def took(self, batch: PlannedBatch) -> None:
        """Note what *batch* leaves of each server: it may have taken less than was planned there."""
        self.backlog |= {each.server.name: max(0, each.backlog - each.records) for each in batch.surveys}

    def _intact(self, surveys: Mapping[str, Survey], standing: Standing) -> dict[str, Survey]:
        """Return the surveys of logs that may be read; note in *standing* those that went back."""
        found = {}
        for log, name in standing.servers.items():
            each = surveys[name]
            assert each.listing.log == log, "it was arranged by its log"
            if each.evidence:
                standing.held[name] = held_back(each.evidence)
            else:
                found[name] = each
        return found

    def _note(self, now: Trouble) -> None:
        for words, before, after in (
            ("is down, the others continue", self.trouble.down, now.down),
            ("is HELD BACK", self.trouble.held, now.held),
        ):
            for name in sorted(after.keys() - before.keys()):
                self._report(f"server {name!r} {words}: {after[name]}")
        for name in sorted(self.trouble.down.keys() - now.down.keys()):
            self._report(f"server {name!r} responds again")
        self.trouble = now

    def release(self, stored: Mapping[str, tuple[LogListing, LogState | None]]) -> None:
        """Truncate or acknowledge what is stored, in the threads of the servers; the next batch repeats a failure."""
        if not self.settings.truncate:
            return
        due = dict[str, Callable[[], Future[None]]]()
        for name, (listing, state) in stored.items():
            send = None if state is None else self.threads[name].due(listing, state, _clock())
            if send is not None:
                due[name] = send
        if due:
            self.before_release()
        jobs = {send(): name for name, send in due.items()}
        self._releasing |= jobs
        self._look_at_releases(jobs, WAIT_SECONDS)

    def finish(self) -> None:
        """Wait for what is being truncated or acknowledged. Raises ConsumerNotOursError."""
        self._look_at_releases(self._releasing, self.first_wait_seconds)

    def _look_at_releases(self, jobs: Iterable[Future[None]], seconds: float) -> None:
        """Wait for *jobs* and raise what a release raised, including one that an earlier call did not wait for."""
        wait(jobs, seconds)
        for job in [each for each in self._releasing if each.done()]:
            name, error = self._releasing.pop(job), job.exception()
            if isinstance(error, ServerDownError | ServiceRefusedError):
                self._report(f"server {name!r} was not truncated, which the next batch does: {error}")
            elif error is not None:
                raise error

    def waits_for_more(self, batch: PlannedBatch) -> bool:
        """Return whether *batch* is to wait for more records. In a run that ends, or where it is full, it never is."""
        settings, now, (records, size) = self.settings, _clock(), self.limits
        if self._waits_since is None:
            self._waits_since = now
        is_full = (records is not None and batch.records >= records) or (size is not None and batch.bytes >= size)
        is_due = is_full or self.ends is not None or any(each.leaves_records for each in batch.surveys)
        has_waited = now - self._waits_since >= settings.max_delay_seconds
        waits = bool(batch.records) and not (is_due or has_waited or batch.records >= settings.min_records)
        if not waits:
            self._waits_since = None
        return waits

    def close(self) -> None:
        """End the threads."""
        for each in self.threads.values():
            each.close()
        self.threads = {}


_clock: Callable[[], float] = time.monotonic
