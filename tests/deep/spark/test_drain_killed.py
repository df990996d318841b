"""Processes of a drain that are killed at any moment, also inside delta-rs and Arrow, next to producers."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tests.spark.draining import drain_all, expected, table_rows
from tests.spark.services import ThreadedService, numbered

KILLS = 8

DRAIN = """
import sys
from mrecordlog_async.spark.drain_call import DrainOptions, drain
server, table = sys.argv[1:]
print("ready", flush=True)
drain(DrainOptions(server, table, every_seconds=0.01, max_records=50, partition_by=("date", "queue")))
"""


def test_a_process_that_is_killed_stores_each_record_once(
    service: ThreadedService, tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    """Wherever the kill hits, the next process continues with what the table has."""
    table, chance, appended = tmp_path / "table", random.Random(5), {"q": 0, "r": 0}
    ended = threading.Event()

    def produce() -> None:
        while not ended.is_set():
            for queue in appended:
                count = chance.randrange(1, 40)
                first = appended[queue]
                service.append(queue, numbered(queue, first, first + count), first)
                appended[queue] = first + count
            ended.wait(0.02)

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()

    def entries() -> int:
        return len(list(table.glob("_delta_log/*.json")))

    for number in range(KILLS):
        before = entries()
        command = [sys.executable, "-c", DRAIN, f"a={service.url}", str(table)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            if number % 2:
                until(lambda before=before: entries() > before + 1)  # type: ignore[misc]  # bound in the loop
            ended.wait(chance.uniform(0.0, 0.5))  # any moment will do
            process.kill()
    ended.set()
    producer.join()
    drain_all({"a": service}, table, partition_by=("date", "queue"))
    assert table_rows(table) == expected(**appended)
    assert not any(service.records().values())
