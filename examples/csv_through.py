"""A CSV file into a service, and out again into another file, without asyncio: two runs of a script, or two machines.

    mrecordlog serve ./wal --port 8080 &
    python examples/csv_through.py in http://127.0.0.1:8080 prices.csv
    python examples/csv_through.py out http://127.0.0.1:8080 copy.csv

A file is sent in batches, each of which is stored once, even if a response is lost. `out` appends what came since its
last run. It acknowledges a batch after the file is on the disk: if it is killed, the next run may write rows again.
"""

import csv
import json
import os
import sys
from contextlib import suppress
from itertools import islice

from mrecordlog_async.client import BlockingRecordLogClient


def send(url: str, path: str) -> None:
    with (
        open(path, newline="") as file,
        BlockingRecordLogClient(url) as client,
        client.producer("rows", create=True) as producer,
    ):
        rows = csv.reader(file)
        while part := list(islice(rows, 1_000)):
            producer.append_records(json.dumps(row).encode() for row in part)


def receive(url: str, path: str) -> None:
    with (
        open(path, "a", newline="") as file,
        BlockingRecordLogClient(url) as client,
        client.consumer("rows", "copy") as consumer,
    ):
        for batch in consumer.available():
            csv.writer(file).writerows(batch.json())
            file.flush()
            os.fsync(file.fileno())
            consumer.acknowledge(batch)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # Ctrl-C
        match sys.argv[1:]:
            case ["in", url, path]:
                send(url, path)
            case ["out", url, path]:
                receive(url, path)
            case _:
                sys.exit(__doc__)
