"""The drain: lists logs, stores what is new, and truncates what is durable in the output, again and again.

All that it knows is in the output. A kill anywhere leaves an output with a batch or without it, and the next start
continues there; the truncate that a kill prevented is done then.

    load → survey all servers at once → arrange → plan → tasks fetch and write → commit rows and positions → release

Each server has a thread of its own. One that is down or slow is left out of a batch until it responds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.log_server import LogListing, ReadTask
from mrecordlog_async.spark.losses import Standing, UnreadLossError, arrange, forgotten, held_back
from mrecordlog_async.spark.output import BatchFailedError, Output, RowWriter, WrittenFile
from mrecordlog_async.spark.planning import Includes, PlannedBatch, Survey, Wish, batch_of, everything
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.server_thread import ServerThread
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.state import DrainState, LogState

logger = logging.getLogger("mrecordlog_async.spark")

RECORDS, BYTES = 1_000_000, 256 << 20
"""A batch has at most this many records, and payload bytes."""

WAIT_SECONDS = 1.0
"""How long the others wait for a server that does not respond in time."""

FIRST_WAIT_SECONDS = 25.0
"""The same, where none has responded yet: it is longer than what a request may take."""

BATCH_SECONDS_MAX = 30 * 60.0
"""Files of a batch that took longer may be removed by a vacuum, which keeps those of the last hour at most."""

SERVER_WAIT_SECONDS = 120.0
"""A run that ends waits this long for a server that was reached in it."""

FAILURES_MAX = 3
"""Batches that may fail in a row in a run that ends."""

RETRY_SECONDS_MAX = 10.0


class ServersHeldError(RecordLogError):
    """All logs are held back, so nothing can be drained."""


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
class DrainTotals:
    """What a drain has done so far. records: read from logs; rows: stored, which a function may make fewer."""

    batches: int = 0
    records: int = 0
    rows: int = 0
    bytes: int = 0
    failed: int = 0
    last_commit: float | None = None


@dataclass(slots=True)
class Trouble:
    """Servers that are left out, each with the reason."""

    down: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)


class Drain:
    """One drain. `step` stores one batch. For one thread.

    Attributes:
        totals: What it has done.
        trouble: Which servers are left out now.
        backlog: About how many records of each server are not stored, as of the last look.
        state: What the output had at the last look.
    """

    def __init__(
        self,
        servers: ServerSet,
        output: Output,
        run: Callable[[Sequence[ReadTask], RowWriter], list[WrittenFile]],
        settings: DrainSettings = DrainSettings(),  # it is frozen
        *,
        cores: int = 1,
        report: Callable[[str], None] = logger.warning,
    ) -> None:
        """Connect the parts; nothing is requested.

        Args:
            servers: where the logs are.
            output: where rows are stored; it is open.
            run: carries out tasks.
            settings: what to do.
            cores: tasks that run at a time.
            report: called with a sentence for people.
        """
        self._servers, self._output, self._run = servers, output, run
        self._settings, self._cores, self._report = settings, cores, report
        self.totals, self.trouble, self.backlog = DrainTotals(), Trouble(), dict[str, int]()
        self.state = DrainState()
        self._ends: dict[str, dict[int, int]] | None = None
        self._known = dict[str, ServerThread]()
        self._waits_since: float | None = None
        self._has_begun = False

    # One batch.

    def step(self) -> int:
        """Store and release one batch; return how many records it had.

        Raises:
            UnreadLossError: records were removed before they were stored.
            OutputRefusedError: the output cannot take the batch.
            BatchFailedError: the batch was not stored, or it is not known; another step plans anew.
            ServerDownError, ServiceRefusedError: a server that was never read does not respond at the start.
        """
        stored = self.state = self._output.load()
        surveys, down = self._surveyed(stored)
        state = self._forgotten(stored, surveys) if not down else stored
        standing = arrange(state, {name: each.listing for name, each in surveys.items()})
        readable = self._readable(surveys, standing)
        self._note(Trouble(down, standing.held), surveys)
        batch = batch_of(state, list(readable.values()), self._settings.records, self._settings.bytes)
        if batch.lost and not self._settings.allow_loss:
            raise UnreadLossError(
                f"{'; '.join(batch.lost[:3])}. Nothing of it was stored or truncated: --allow-data-loss continues with "
                "what is left"
            )
        self._release({name: (each.listing, each.stored) for name, each in readable.items()})
        if not self._is_due(batch, forgets=state is not stored):
            return 0
        return self._store(batch, readable)

    def _store(self, batch: PlannedBatch, readable: Mapping[str, Survey]) -> int:
        begun, begun_at = _clock(), time.time()
        tasks = batch.tasks(self._cores)
        files = self._run(tasks, self._output.writer) if tasks else []
        took = max(_clock() - begun, time.time() - begun_at)  # the first one does not count while a machine is asleep
        if took > BATCH_SECONDS_MAX:
            raise BatchFailedError(
                f"a batch took {took / 60:.0f} minutes, and a vacuum may remove its files by now; it was not stored. "
                "Set --max-records lower, or give Spark more cores"
            )
        self.state = self._output.commit(files, batch.state)
        for sentence in batch.lost:
            self._report(f"lost, as allowed: {sentence}")
        records, totals = batch.records, self.totals
        if records:
            totals.batches += 1
            totals.last_commit = time.time()
        totals.records += records
        totals.rows += sum(each["rows"] for each in files)
        totals.bytes += batch.bytes
        after = {each.server.name: each.after for each in batch.surveys}
        self._release({name: (each.listing, after[name]) for name, each in readable.items()})
        return records

    def _surveyed(self, state: DrainState) -> tuple[dict[str, Survey], dict[str, str]]:
        """Survey all servers at once; return what those have that responded in time, and why others are left out."""
        now = _clock()
        self._known = {each.server.name: each for each in self._servers()}
        asked = {name: each.asked(state, self._wish(name), now) for name, each in self._known.items()}
        waited = [job for name, job in asked.items() if job is not None and not self._known[name].is_late]
        wait(waited, FIRST_WAIT_SECONDS if not self._has_begun else WAIT_SECONDS)
        found, down = dict[str, Survey](), dict(self._servers.unfound)
        for name, job in asked.items():
            thread = self._known[name]
            if job is None:
                down[name] = self.trouble.down.get(name, "it does not respond")
            elif not job.done():
                thread.is_late = True
                down[name] = "it does not respond in time"
            else:
                thread.taken()
                self._take(thread, job, state, found, down)
        self._has_begun = True
        return found, down

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
            if not self._has_begun and not is_known and not self._settings.skip_down:
                raise  # its address may be wrong
            thread.absence.begin(_clock())
            down[name] = error.reason
            return
        thread.absence.end()
        thread.reached = True
        if result.known is state.logs.get(result.listing.log):
            found[name] = result  # otherwise it was made from an older state: the next step has a new one

    def _wish(self, name: str) -> Wish:
        """Return what may be planned of one server: its share of the limits, by what each had at the last look."""
        settings, total = self._settings, sum(self.backlog.values())
        share = self.backlog.get(name, 0) / total if total else 1.0 / max(1, len(self._known))
        return Wish(
            max(1, round(settings.records * share)),
            max(1, round(settings.bytes * share)),
            settings.includes,
            settings.accept_went_back,
            self._ends,
        )

    def _forgotten(self, state: DrainState, surveys: Mapping[str, Survey]) -> DrainState:
        """Return *state* without the logs to forget; itself if it has none of them."""
        return forgotten(state, self._settings.forget, [each.listing for each in surveys.values()])

    def _readable(self, surveys: Mapping[str, Survey], standing: Standing) -> dict[str, Survey]:
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

    def _is_due(self, batch: PlannedBatch, *, forgets: bool) -> bool:
        """Return whether *batch* is stored now: it has records, and does not wait for more."""
        settings, now = self._settings, _clock()
        if any(each.is_changed for each in batch.surveys) or forgets:
            return True
        if not batch.records:
            self._waits_since = None
            return False
        if self._waits_since is None:
            self._waits_since = now
        is_full = batch.records >= settings.records or batch.bytes >= settings.bytes
        is_cut = sum(self.backlog.values()) > batch.records
        has_waited = now - self._waits_since >= settings.max_delay_seconds
        is_due = self._ends is not None or is_full or is_cut or has_waited or batch.records >= settings.min_records
        if is_due:
            self._waits_since = None
        return is_due

    def _release(self, stored: Mapping[str, tuple[LogListing, LogState | None]]) -> None:
        """Truncate what the output has, in the threads of the servers; a failure is repeated with the next batch."""
        if not self._settings.truncate:
            return
        jobs = dict[Future[None], str]()
        for name, (listing, state) in stored.items():
            job = None if state is None else self._known[name].release(listing, state, _clock())
            if job is not None:
                jobs[job] = name
        for job in wait(jobs, WAIT_SECONDS).done:
            error = job.exception()
            if isinstance(error, ServerDownError | ServiceRefusedError):
                self._report(f"server {jobs[job]!r} was not truncated, which the next batch does: {error}")
            elif error is not None:
                raise error

    def _note(self, now: Trouble, surveys: Mapping[str, Survey]) -> None:
        """Report servers that are left out from now on, and those that are back."""
        for words, before, after in (
            ("is down, the others continue", self.trouble.down, now.down),
            ("is HELD BACK", self.trouble.held, now.held),
        ):
            for name in sorted(after.keys() - before.keys()):
                self._report(f"server {name!r} {words}: {after[name]}")
        for name in sorted(self.trouble.down.keys() - now.down.keys()):
            self._report(f"server {name!r} responds again")
        self.trouble = now
        self.backlog = {name: each.backlog for name, each in surveys.items()}

    # Many batches.

    def follow(self, every_seconds: float | None, stopped: Callable[[], bool], pause: Callable[[float], None]) -> None:
        """Store batches until *stopped*; without *every_seconds*, until all is stored that was there at the start.

        Args:
            every_seconds: how often to look; None for a run that ends.
            stopped: whether to end after the current batch.
            pause: waits for some seconds, or until *stopped*.

        Raises:
            ServersHeldError: all logs are held back.
            ServerDownError: a server of a run that ends did not come back.
        """
        self._ends = {} if every_seconds is None else None
        failures = 0
        while not stopped():
            begun = _clock()
            try:
                records = self.step()
            except BatchFailedError as error:
                failures += 1
                self.totals.failed += 1
                if every_seconds is None and failures >= FAILURES_MAX:
                    raise
                self._report(f"a batch was not stored, and is planned anew: {error}")
                pause(min(RETRY_SECONDS_MAX, 2.0**failures / 2))
                continue
            failures = 0
            if every_seconds is not None:
                pause(max(0.0, every_seconds - (_clock() - begun)))
            elif not records and self._has_ended():
                return
            elif not records:
                pause(WAIT_SECONDS)

    def _has_ended(self) -> bool:
        """Return whether a run that ends has stored everything. Raises ServerDownError, ServersHeldError."""
        if self.trouble.held and len(self.trouble.held) + len(self.trouble.down) >= len(self._known):
            raise ServersHeldError("; ".join(f"server {name!r}: {why}" for name, why in self.trouble.held.items()))
        for name, why in self.trouble.down.items():
            thread = self._known.get(name)  # None for a DNS name that was not found
            if self._settings.skip_down:
                continue
            since = None if thread is None else thread.absence.since
            if thread is not None and (since is None or _clock() - since < SERVER_WAIT_SECONDS):
                return False
            raise ServerDownError(name, "" if thread is None else str(thread.server.endpoint), why)
        return True

    def close(self) -> None:
        """End the threads."""
        for each in self._known.values():
            each.close()


_clock: Callable[[], float] = time.monotonic
