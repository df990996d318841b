"""Producers that run through a campaign: they append, delete drained queues and create them again.

A producer knows what was acknowledged to it: of each incarnation of a queue, the next position. A record's payload
names its incarnation and position, so what a table holds can be compared with what was acknowledged.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from deltalake import DeltaTable

from mrecordlog_async.model import Run
from mrecordlog_async.protocol import calls
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.log_server import LogServer, Patience

RECORDS_PER_APPEND = 40
APPENDS_PER_SECOND = 10
TRUNCATED_PART = 0.001
"""Part of the appends after which another program truncates: more often, hardly any batch would find its records."""
QUEUES = 6
JOIN_SECONDS = 120.0

Row = tuple[str, str, int, bytes]
"""server, queue, position, payload."""


class Producer(threading.Thread):
    """Appends to the queues of one service until it is told to end. It sends what was not acknowledged again.

    Args:
        server: the service's name.
        url: its address.
        seed: of its choices.
        options: of the queues that it creates.
        recreates: delete queues that were drained, now and then.
        at_once: records of one request.
        truncates: remove records, read or not, now and then: another program does.
    """

    def __init__(
        self,
        server: str,
        url: str,
        seed: int,
        *,
        options: dict[str, object] | None = None,
        recreates: bool = True,
        at_once: int = RECORDS_PER_APPEND,
        truncates: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        self.server, self.url, self.recreated = server, url, 0
        self.acknowledged: dict[tuple[str, int], int] = {}
        self.truncated: dict[tuple[str, int], int] = {}
        self._truncates = truncates
        self.failure: BaseException | None = None
        self._options, self._recreates, self._at_once = options, recreates, at_once
        self._client = client_of(server, url)
        self._incarnations: dict[str, int] = {}
        self._leaving = ""  # the queue that gets no more records until it is drained, and is then deleted
        self._chance, self._ending = random.Random(seed), threading.Event()

    def run(self) -> None:
        try:
            while not self._ending.wait(1 / APPENDS_PER_SECOND):
                queue = f"queue {self._chance.randrange(QUEUES)}"
                if queue == self._leaving:
                    self._delete_drained(queue)
                else:
                    self._append(queue)
                    if self._truncates and self._chance.random() < TRUNCATED_PART:
                        self._truncate(queue)
                if self._recreates and not self._leaving and self._chance.random() < 0.05:
                    self._leaving = queue
        except BaseException as error:  # shown by `end`
            self.failure = error
        finally:
            self._client.close()

    def stop(self) -> None:
        """Stop appending after the current request."""
        self._ending.set()

    def end(self) -> None:
        """Stop appending. Raises what went wrong."""
        self.stop()
        self.join(JOIN_SECONDS)
        assert not self.is_alive(), f"the service {self.server!r} acknowledges nothing"
        if self.failure is not None:
            raise self.failure

    def rows(self) -> list[Row]:
        """Return what was acknowledged."""
        return self._rows_before(self.acknowledged)

    def removed(self) -> list[Row]:
        """Return what it has truncated, some of which was stored before."""
        return self._rows_before(self.truncated)

    def _rows_before(self, stops: dict[tuple[str, int], int]) -> list[Row]:
        return [
            (self.server, queue, at, payload(self.server, queue, incarnation, at))
            for (queue, incarnation), stop in stops.items()
            for at in range(stop)
        ]

    def _append(self, queue: str) -> None:
        if queue not in self._incarnations:
            self._incarnations[queue] = 0
            self._create(queue)
        incarnation = self._incarnations[queue]
        first = self.acknowledged.get((queue, incarnation), 0)
        records = [payload(self.server, queue, incarnation, first + n) for n in range(self._at_once)]
        self._client.send(calls.append_runs(queue, first, [Run.of(first, records)], create=False))
        self.acknowledged[queue, incarnation] = first + self._at_once

    def _truncate(self, queue: str) -> None:
        """Remove a random part of what there may be."""
        key = (queue, self._incarnations[queue])
        stop = self._chance.randrange(max(0, self.acknowledged[key] - 2 * self._at_once), self.acknowledged[key]) + 1
        self.truncated[key] = max(stop, self.truncated.get(key, 0))
        request(self.url, "POST", f"{queue}/truncate", {"position": stop - 1})

    def _create(self, queue: str) -> None:
        # The repeat of a lost response finds the queue, which nobody else creates.
        request(self.url, "PUT", queue, self._options, accepted=(409,))

    def _delete_drained(self, queue: str) -> None:
        incarnation = self._incarnations[queue]
        summary = self._client.send(calls.queue_summary(queue))
        if summary.records or summary.next_position != self.acknowledged.get((queue, incarnation), 0):
            return
        request(self.url, "DELETE", queue, accepted=(404,))
        self._incarnations[queue], self._leaving = incarnation + 1, ""
        self.recreated += 1
        self._create(queue)


def request(url: str, method: str, queue: str, body: object = None, accepted: Iterable[int] = ()) -> None:
    """Send a request about a queue until there is a response. Raises HTTPError for an error that is not *accepted*."""
    deadline = time.monotonic() + JOIN_SECONDS
    data = None if body is None else json.dumps(body).encode()
    address = f"{url}/v1/queues/{queue.replace(' ', '%20')}"
    while True:
        try:
            with urlopen(Request(address, data, {"Content-Type": "application/json"}, method=method), timeout=60):
                return
        except HTTPError as error:
            if error.code in accepted:
                return
            if error.code not in (500, 503):
                raise
        except (URLError, OSError):
            pass
        assert time.monotonic() < deadline, f"{method} {address} gets no response"
        time.sleep(0.1)


def payload(server: str, queue: str, incarnation: int, position: int) -> bytes:
    """Return the record that belongs at *position*; some are larger than a block."""
    filling = b"." * (40_000 if position % 500 == 0 else position % 200)
    return f"{server}/{queue}/{incarnation}:{position}".encode() + filling


def client_of(server: str, url: str) -> LogServer:
    """Return a client that waits for a service that is down."""
    return LogServer(server, Endpoint(url), patience=Patience(60.0, 1_000))


def check_once(tables: Iterable[DeltaTable], producers: list[Producer]) -> int:
    """Check that each table has every acknowledged record once; return how many. Raises AssertionError.

    Records that another program has truncated may be missing.
    """
    expected = sorted(row for producer in producers for row in producer.rows())
    may_be_missing = {row for producer in producers for row in producer.removed()}
    records = 0
    for table in tables:
        columns = ["server", "queue", "position", "payload"]
        found = sorted(tuple(row.values()) for row in table.to_pyarrow_table(columns=columns).to_pylist())
        missing = may_be_missing - set(found)
        wanted = [row for row in expected if row not in missing] if missing else expected
        assert found == wanted, f"{table.table_uri}: {difference(found, wanted)}"
        records = max(records, len(found))
    return records


def left_in(producers: Iterable[Producer]) -> int:
    """Return how many records the logs hold."""
    left = 0
    for producer in producers:
        client = client_of(producer.server, producer.url)
        left += sum(queue.records for queue in client.listing().queues.values())
        client.close()
    return left


def difference(found: list[Row], expected: list[Row]) -> str:
    """Describe how two sorted lists of rows differ."""
    missing, other = set(expected) - set(found), set(found) - set(expected)
    twice = len(found) - len(set(found))
    first = sorted(missing or other)[:3]
    return f"{len(missing)} rows are missing, {twice} there twice, {len(other)} foreign; the first: {first}"


def check_empty(producers: list[Producer]) -> None:
    """Check that every record of every log was truncated, and that no position was lost. Raises AssertionError."""
    for producer in producers:
        client = client_of(producer.server, producer.url)
        listed = {each.queue: (each.records, each.next_position) for each in client.listing().queues.values()}
        client.close()
        last = {
            queue: (0, producer.acknowledged.get((queue, number), 0))
            for queue, number in producer._incarnations.items()
        }
        assert listed == last, f"{producer.server}: {listed} instead of {last}"
