"""How long records take from a request to a row: `python -m tests.spark.request_to_row --every 300ms --requests 2000`.

A service, and a drain with real Spark, each in its own process. Clients send `POST …?wait_consumer=lake&wait=60`, each
one record at a time with random pauses, so that requests come at any moment between two triggers. The first requests
warm Java up, and do not count. Of some responses it is checked at once, with delta-rs, that the row is in the table; at
the end, that each record is there once.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

from deltalake import DeltaTable

from tests.spark.processes import DrainProcess, ServiceProcess, start
from tests.spark.producers import request

QUEUE = "clicks"
CHECKED = 0.02
"""Part of the responses whose rows are looked for at once."""


def rows(table: Path) -> list[int]:
    """Return the positions in a table, sorted."""
    found = DeltaTable(str(table)).to_pyarrow_table(columns=["position"])
    return sorted(found.column("position").to_pylist())


class Clients:
    """Clients of one service, whose drain writes to *table*. pause_seconds: of each, on average, after a response."""

    def __init__(self, url: str, table: Path, pause_seconds: float) -> None:
        self._url = f"{url}/v1/queues/{QUEUE}/records?wait_consumer=lake&wait=60"
        self._table, self._pause_seconds = table, pause_seconds

    def send(self, number: int) -> list[float]:
        """Send this many records; return what each took."""
        return [self._send_one() for _ in range(number)]

    def _send_one(self) -> float:
        begun = time.perf_counter()
        with urlopen(Request(self._url, b"x" * 200, method="POST")) as response:
            reply = json.loads(response.read())
        took = time.perf_counter() - begun
        assert reply["acknowledged"] is True, reply
        if random.random() < CHECKED:
            assert reply["position"] in rows(self._table), f"position {reply['position']} is not in the table"
        time.sleep(random.expovariate(1 / self._pause_seconds))
        return took

    def send_all(self, clients: int, requests: int) -> list[float]:
        """Send records from this many threads; return what each took, sorted."""
        with ThreadPoolExecutor(clients) as pool:
            return sorted(each for found in pool.map(self.send, [requests // clients] * clients) for each in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", default="300ms")
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--pause-seconds", type=float, default=0.1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mrecordlog-request-") as directory:
        place = Path(directory)
        service = ServiceProcess("a", place / "log", place / "service.txt")
        more = ("--consumer", "lake", "--every", arguments.every)
        table = place / "table"
        drain = DrainProcess("mrecordlog_async", {"a": service.url}, table, place, *more)
        try:
            start([service])
            request(service.url, "PUT", "*/consumers/lake?exist_ok=1", {})
            request(service.url, "PUT", QUEUE, {"keep": "until_acknowledged"})
            drain.start()
            request(service.url, "POST", f"{QUEUE}/records?json=records", ["the first one"])
            drain.wait_for_batches(1)
            clients = Clients(service.url, table, arguments.pause_seconds)
            warm = clients.send_all(arguments.clients, arguments.requests // 5)
            before = drain.batches()
            taken = clients.send_all(arguments.clients, arguments.requests)
            batches = drain.batches() - before
            assert rows(table) == list(range(1 + len(warm) + len(taken))), "rows are missing, or there twice"
        finally:
            drain.kill()
            service.kill()
    p50, p99 = (taken[int(len(taken) * part)] for part in (0.5, 0.99))
    print(
        f"{len(taken):,} requests in {batches} batches, drain --every {arguments.every}: from the request to the row "
        f"p50 {p50:.2f} s, p99 {p99:.2f} s, longest {taken[-1]:.2f} s; each is in the table once"
    )


if __name__ == "__main__":
    main()
