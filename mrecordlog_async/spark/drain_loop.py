"""The drain: lists logs, stores what is new, and truncates what is durable in the output, again and again.

All that it knows is in the output. A kill anywhere leaves an output with a batch or without it, and the next start
continues there; the truncate that a kill prevented is done then.

    load → survey all servers at once → arrange → plan → tasks fetch and write → commit rows and positions → release

Each server has a thread of its own. One that is down or slow is left out of a batch until it responds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from mrecordlog_async.spark.connection import ServerDownError
from mrecordlog_async.spark.log_server import ReadTask
from mrecordlog_async.spark.losses import ServersHeldError, UnreadLossError, forgotten, left
from mrecordlog_async.spark.output import BatchFailedError, Output, RowWriter, WrittenFile
from mrecordlog_async.spark.planning import PlannedBatch, Survey, batch_of
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.state import DrainState
from mrecordlog_async.spark.surveying import WAIT_SECONDS, DrainSettings, Surveyor, Trouble

logger = logging.getLogger("mrecordlog_async.spark")

BATCH_SECONDS_MAX = 30 * 60.0
"""Files of a batch that took longer may be removed by a vacuum, which keeps those of the last hour at most."""

SERVER_WAIT_SECONDS = 120.0
"""A run that ends waits this long for a server that was reached in it."""

FAILURES_MAX = 3
"""Batches that may fail in a row in a run that ends."""

RETRY_SECONDS_MAX = 10.0

REST_SECONDS_MAX = 600.0
"""A server that cannot be read is tried again after this time at most, while the others continue."""

REST_TIMES = 4
"""It rests this many times as long as the attempt took: one that hangs takes a fifth of the time at most."""


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
class _Suspect:
    """A server of a batch that failed: it is tried alone. failures: of batches of its own; again: when to try."""

    again: float
    failures: int = 0
    why: BatchFailedError | None = None


class Drain:
    """One drain. `step` stores one batch. For one thread.

    Attributes:
        totals: What it has done.
        state: What the output had at the last look.
    """

    def __init__(
        self,
        servers: ServerSet,
        output: Output,
        run: Callable[[Sequence[ReadTask], RowWriter], list[WrittenFile]],
        settings: DrainSettings,
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
        self._logs, self._output, self._run = Surveyor(servers, settings, report), output, run
        self._settings, self._cores, self._report = settings, cores, report
        self.totals, self.state = DrainTotals(), DrainState()
        self._suspects: dict[str, _Suspect] = {}
        self._forgets_after = list[str]()  # servers that --forget waits for, as was reported

    @property
    def trouble(self) -> Trouble:
        """Which servers are left out now."""
        return self._logs.trouble

    @property
    def left(self) -> dict[str, int | None]:
        """About how many records of each server are not stored; None where the last look does not say."""
        logs = self.state.logs
        return {
            name: None if listing is None else left(logs.get(listing.log), listing)
            for name, listing in self._logs.listed.items()
        }

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
        surveys, down = self._logs.look(stored)
        state = self._forgotten(stored, surveys, down)
        readable = self._logs.readable(state, surveys, down)
        batch = batch_of(state, self._chosen(readable), self._settings.records, self._settings.bytes)
        if batch.lost and not self._settings.allow_loss:
            raise UnreadLossError(
                f"{'; '.join(batch.lost[:3])}. Nothing of it was stored or truncated: --allow-data-loss continues with "
                "what is left"
            )
        self._logs.release({name: (each.listing, each.stored) for name, each in readable.items()})
        if not self._is_due(batch, forgets=state is not stored):
            return 0
        return self._store(batch)

    def _store(self, batch: PlannedBatch) -> int:
        begun, names = _clock(), [each.server.name for each in batch.surveys if each.ranges]
        self._logs.batches += 1
        try:
            files = self._written(batch)
        except BatchFailedError as error:
            self._suspect(names, error, _clock() - begun)
            raise
        for name in names:
            self._suspects.pop(name, None)
        self.state = self._output.commit(files, batch.state)
        for sentence in batch.lost:
            self._report(f"lost, as allowed: {sentence}")
        for each in batch.surveys:
            if each.known is not None and each.stored is None:
                self._logs.accepted.add(each.listing.log)
                self._report(f"went back, as allowed: all that server {each.server.name!r} has is stored again")
        records, totals = batch.records, self.totals
        if records:
            totals.batches += 1
            totals.last_commit = time.time()
        totals.records += records
        totals.rows += sum(each["rows"] for each in files)
        totals.bytes += batch.bytes
        self._logs.release({each.server.name: (each.listing, each.after) for each in batch.surveys})
        return records

    def _written(self, batch: PlannedBatch) -> list[WrittenFile]:
        begun, begun_at = _clock(), time.time()
        tasks = batch.tasks(self._cores)
        files = self._run(tasks, self._output.writer) if tasks else []
        took = max(_clock() - begun, time.time() - begun_at)  # the first one does not count while a machine is asleep
        if took > BATCH_SECONDS_MAX:
            raise BatchFailedError(
                f"a batch took {took / 60:.0f} minutes, and a vacuum may remove its files by now; it was not stored. "
                "Set --max-records lower, or give Spark more cores"
            )
        return files

    # Servers that list their logs and cannot be read.

    def _chosen(self, readable: Mapping[str, Survey]) -> list[Survey]:
        """Return what the next batch reads: one server that a batch failed for, or all others."""
        due = [name for name, each in readable.items() if each.ranges or each.is_changed]
        for name in readable.keys() & self._suspects.keys() - set(due):
            del self._suspects[name]
        now = _clock()
        suspects = {name: self._suspects[name].again for name in due if name in self._suspects}
        first = min(suspects, key=lambda name: suspects[name], default=None)
        if first is not None and suspects[first] <= now:
            return [readable[first]]
        return [each for name, each in readable.items() if name not in suspects]

    def _suspect(self, names: Sequence[str], error: BatchFailedError, took: float) -> None:
        """Note that a batch of *names* failed: each of them is tried alone, and rests while that fails."""
        for name in names:
            found = self._suspects.setdefault(name, _Suspect(_clock()))
            if len(names) == 1 and len(self._logs.threads) > 1:
                if not found.failures:
                    self._report(f"server {name!r} cannot be read, the others continue: {error}")
                found.failures, found.why = found.failures + 1, error
                ends = self._logs.ends is not None
                rest = max(2.0**found.failures / 2, 0.0 if ends else REST_TIMES * took)
                found.again = _clock() + min(rest, RETRY_SECONDS_MAX if ends else REST_SECONDS_MAX)

    def _forgotten(self, state: DrainState, surveys: Mapping[str, Survey], down: Collection[str]) -> DrainState:
        """Return *state* without the logs to forget; itself if it has none of them, or the server of one is down."""
        forget = self._settings.forget
        waits = sorted({each.server for log, each in state.logs.items() if log.startswith(forget)} & set(down))
        if not waits:
            return forgotten(state, forget, [each.listing for each in surveys.values()])
        if waits != self._forgets_after:
            self._report(f"--forget waits for server {waits[0]!r}, which is down: it may have the log")
            self._forgets_after = waits
        return state

    def _is_due(self, batch: PlannedBatch, *, forgets: bool) -> bool:
        """Return whether *batch* is stored now: it has records, and does not wait for more."""
        if any(each.is_changed for each in batch.surveys) or forgets:
            return True
        return not self._logs.waits_for_more(batch) and batch.records > 0

    # Many batches.

    def follow(
        self,
        every_seconds: float | None,
        stopped: Callable[[], bool],
        pause: Callable[[float], None],
        stored: Callable[[int, float], None] = lambda records, seconds: None,
    ) -> None:
        """Store batches until *stopped*; without *every_seconds*, until all is stored that was there at the start.

        Args:
            every_seconds: how often to look; None for a run that ends.
            stopped: whether to end after the current batch.
            pause: waits for some seconds, or until *stopped*.
            stored: called after each batch that has records, with how many, and how long it took.

        Raises:
            ServersHeldError: all logs are held back.
            ConsumerNotOursError: another reader has taken the consumer over.
            ServerDownError: a server of a run that ends did not come back.
            BatchFailedError: a run that ends cannot store a batch, or read a server.
        """
        self._logs.ends = {} if every_seconds is None else None
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
            if records:
                stored(records, _clock() - begun)
            if every_seconds is not None:
                if not self.trouble.down:
                    self._refuse_held()
                pause(max(0.0, every_seconds - (_clock() - begun)))
            elif not records and self._has_ended():
                break
            elif not records:
                pause(WAIT_SECONDS)
        self._logs.finish()

    def _refuse_held(self) -> None:
        """Raise ServersHeldError if no log is left that is read or awaited."""
        held, down = self.trouble.held, self.trouble.down
        if held and len(held) + len(down) >= len(self._logs.threads):
            raise ServersHeldError(held)

    def _has_ended(self) -> bool:
        """Return whether a run that ends has stored all. Raises ServerDownError, ServersHeldError, BatchFailedError."""
        self._refuse_held()
        for name, why in self.trouble.down.items():
            thread = self._logs.threads.get(name)  # None for a DNS name that was not found
            if self._settings.skip_down:
                continue
            since = None if thread is None else thread.absence.since
            if thread is not None and (since is None or _clock() - since < SERVER_WAIT_SECONDS):
                return False
            raise ServerDownError(name, "" if thread is None else str(thread.server.endpoint), why)
        suspects = [each for name, each in self._suspects.items() if name not in self.trouble.down]
        for each in suspects:
            if each.why is not None and each.failures >= FAILURES_MAX:
                raise each.why
        return not suspects and not self._logs.is_outdated

    def close(self) -> None:
        """End the threads."""
        self._logs.close()


_clock: Callable[[], float] = time.monotonic
