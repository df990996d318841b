"""Exactly once, or refused, whatever happens between Spark's steps: crashes, restarts, deleted queues, restored logs.

The histories are random, with a seed, and need no JVM: `Query` plays Spark, the services are real. No payload is
written twice, so each row identifies its record. A log that went back must be refused at every step until the user
accepts it. After that no record that it holds may be missing, and only its records may be read twice. A queue that was
deleted with unread records must be refused too.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from mrecordlog_async.spark.losses import ServersHeldError, UnreadLossError
from mrecordlog_async.spark.state import QueueAt
from tests.spark.query import Query
from tests.spark.services import ThreadedService

STEPS = 150


class Copy:
    """A copy of a log: its files, and every payload that it holds or held before."""

    def __init__(self, directory: Path, ends: dict[tuple[str, int], int], written: set[bytes]) -> None:
        self.directory = directory
        self.ends = ends
        self.written = written


class Campaign:
    """One query over two services, and what must be true of its rows."""

    def __init__(self, seed: int, place: Path) -> None:
        self.random = random.Random(seed)
        self.place = place
        self.services = {name: ThreadedService(place / name) for name in ("a", "b")}
        self.written: dict[str, set[bytes]] = {name: set() for name in self.services}
        self.lost: set[bytes] = set()  # acknowledged, and deleted before they were read
        self.twice: set[bytes] = set()  # in a log that went back, when that was accepted
        self.copies: dict[str, Copy] = {}
        self.deleted: set[tuple[str, int]] = set()  # server, queue id
        self.counter = 0
        self.refusals = Counter[str]()
        truncate = self.random.choice(["true", "false"])
        self.query = Query(self.servers(("a", "b")), truncate=truncate)

    def end(self) -> None:
        for service in self.services.values():
            service.end()

    def run(self) -> None:
        """Act at random, then read everything that is left."""
        acts = [self.append] * 6 + [self.step] * 8 + [self.crash] * 3
        acts += [self.reopen, self.narrow, self.widen, self.delete, self.keep, self.go_back]
        for _ in range(STEPS):
            self.random.choice(acts)()
        self.widen()
        self.query.drain()
        self.check()

    def check(self) -> None:
        """Check how often each payload was read."""
        seen = Counter(row[3] for row in self.query.rows)
        for payload in set().union(*self.written.values()):
            if payload in self.twice:
                assert seen[payload] >= 1 or payload in self.lost, f"{payload!r} is missing"
            elif payload in self.lost:
                assert seen[payload] <= 1, f"{payload!r} was read {seen[payload]} times"
            else:
                assert seen[payload] == 1, f"{payload!r} was read {seen[payload]} times"

    # What producers, operators and power failures do.

    def append(self) -> None:
        name, queue = self.random.choice("ab"), f"q{self.random.randrange(4)}"
        payloads = [f"{name}/{queue}/{self.counter + index}".encode() for index in range(self.random.randrange(1, 30))]
        self.counter += len(payloads)
        service, position = self.services[name], None
        if self.random.random() < 0.2:
            known = service.summary().get(queue)
            position = (known.next_position if known else 0) + self.random.randrange(1_000)
        service.append(queue, payloads, position)
        self.written[name].update(payloads)

    def reopen(self) -> None:
        service = self.services[self.random.choice("ab")]
        service.stop()
        service.start()

    def delete(self) -> None:
        """Delete a queue; if it had unread records, the query must be refused."""
        name = self.random.choice("ab")
        service = self.services[name]
        listing = service.summary()
        if not listing:
            return
        self.widen()
        queue = self.random.choice(sorted(listing))
        unread = {payload for _, payload in service.records()[queue]} - self.read()
        known = self.query.positions.get(name, {}).get(queue, QueueAt(0, 0))
        ours = known.id == listing[queue].id
        service.delete(queue)
        self.deleted.add((name, listing[queue].id))
        self.copies.pop(name, None)  # restored, it would bring the queue back that the checkpoint has forgotten
        self.lost |= unread
        if unread and ours:
            self.refused_until_accepted()

    def keep(self) -> None:
        """Copy a log, so that `go_back` can restore it."""
        name = self.random.choice("ab")
        service, directory = self.services[name], self.place / f"copy-{name}"
        shutil.rmtree(directory, ignore_errors=True)
        service.keep_copy(directory)
        ends = {(queue, each.id): each.next_position for queue, each in service.summary().items()}
        self.copies[name] = Copy(directory, ends, set(self.written[name]))

    def go_back(self) -> None:
        """Restore a copy and let producers continue; the query must notice."""
        if not self.copies:
            return
        name = self.random.choice(sorted(self.copies))
        service, copy = self.services[name], self.copies.pop(name)
        self.widen()
        positions = self.query.positions.get(name, {})
        if any(at == 0 and (queue, queue_id) not in copy.ends for queue, (queue_id, at) in positions.items()):
            return  # nothing of it was read: recreated under the same id it is new, otherwise it was deleted
        ahead = any(
            at > copy.ends.get((queue, queue_id), -1)
            for queue, (queue_id, at) in positions.items()
            if (name, queue_id) not in self.deleted
        )
        self.lost |= self.written[name] - copy.written
        service.go_back(copy.directory)
        self.written[name] &= copy.written | self.lost
        for _ in range(self.random.randrange(20)):
            self.append()
        for _ in range(self.random.randrange(3)):
            service.stop()
            service.start()
        if ahead or self.is_refused():
            self.refused_until_accepted(again=name)

    def is_refused(self) -> bool:
        """Return whether the query is refused: a copy may lack only batches that the query listed and did not read."""
        try:
            self.finish_batch()
            self.query.step(ReadMaxRows(1))
        except (UnreadLossError, ServersHeldError):
            return True
        return bool(self.query.reader._logs.trouble.held)  # the other log goes on

    def refused_until_accepted(self, *, again: str | None = None) -> None:
        """Check that the query is refused, even after a restart; then accept it. again: the log that went back."""
        for _ in range(2):
            with pytest.raises((UnreadLossError, ServersHeldError)) as refused:
                self.finish_batch()
                self.query.drain()
            self.refusals["went back" if "went back" in str(refused.value) else "deleted"] += 1
            self.query.restart()
        self.query.planned = None
        kept = dict(self.query.options)
        if again is not None:
            self.twice |= {payload for records in self.services[again].records().values() for _, payload in records}
        self.query.options["failOnDataLoss"] = "false"
        self.query.drain()
        self.query.options = kept
        self.query.restart()

    # What Spark does.

    def step(self) -> None:
        self.query.step(ReadMaxRows(self.random.choice([1, 7, 40, 1_000])))

    def crash(self) -> None:
        """Die after the offset was written, after the tasks ran, or after the commit."""
        how = self.random.randrange(3)
        if how < 2:
            self.query.step(ReadMaxRows(25), die_before_commit=True)
        else:
            self.query.step(ReadMaxRows(25))
        self.query.restart()

    def finish_batch(self) -> None:
        if self.query.planned is not None:
            self.query.step()

    def narrow(self) -> None:
        """Leave out one of the servers, or some queues."""
        self.finish_batch()
        if self.random.random() < 0.5:
            self.query.options["servers"] = self.servers(self.random.choice("ab"))
        else:
            self.query.options["subscribePattern"] = "q[01]"
        self.query.restart()

    def widen(self) -> None:
        """Read all servers and queues again."""
        self.finish_batch()
        self.query.options["servers"] = self.servers("ab")
        self.query.options.pop("subscribePattern", None)
        self.query.restart()

    def servers(self, names: tuple[str, ...] | str) -> str:
        return ",".join(f"{name}={self.services[name].url}" for name in names)

    def read(self) -> set[bytes]:
        return {row[3] for row in self.query.rows}


@pytest.fixture
def campaign(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Campaign]:
    campaign = Campaign(request.param, tmp_path)
    yield campaign
    campaign.end()


@pytest.mark.parametrize("campaign", range(8), indirect=True)
def test_every_record_comes_once_or_the_query_is_refused(campaign: Campaign) -> None:
    """Whatever happens to logs, services and the query, each record is read once, or the query is refused."""
    campaign.run()
    assert campaign.query.batches > 10 and sum(campaign.refusals.values()) > 1
