"""Five programs that an application may begin with run as a person would run them, and through kill -9.

Three of them have a twin in `without_log`, which does the same work with a queue in memory or a plain file: the other
two need the log for what they do.
"""

from __future__ import annotations

import ast
import csv
import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from mrecordlog_async import ReadOnlyLog
from mrecordlog_async.client import BlockingRecordLogClient
from tests.deep.examples.test_examples import EXAMPLES, ask, run, running
from tests.said import at_any_speed
from tests.serving import TIMEOUT_SECONDS, Process, free_port

TWINS = Path(__file__).parent / "without_log"
LINES_MORE = 5


@pytest.mark.parametrize("twin", sorted(path.name for path in TWINS.glob("*.py")))
def test_a_program_with_the_log_is_hardly_longer_than_without_it(twin: str) -> None:
    """At most five lines more than the same work with a queue in memory, which is lost with its process."""
    assert code_lines((EXAMPLES / twin).read_text()) <= code_lines((TWINS / twin).read_text()) + LINES_MORE


def code_lines(text: str) -> int:
    """Count the lines of code: one for each statement, or head of one. Imports and docstrings do not count."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(inside := getattr(node, name, None), list):
                setattr(node, name, [one for one in inside if not is_import_or_docstring(one)])
    return sum(bool(line) for line in ast.unparse(tree).splitlines())


def is_import_or_docstring(node: ast.AST) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant or isinstance(node, ast.Import | ast.ImportFrom)


@pytest.mark.usefixtures("interruptible")
def test_each_order_is_in_sqlite_once_through_kills(tmp_path: Path) -> None:
    """Four callers, two kills: what was acknowledged is a row, no row is there twice, and SIGTERM ends it cleanly."""
    port, database = free_port(), str(tmp_path / "orders.sqlite")
    command = (sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_sqlite:app", "--port", str(port))
    accepted: list[str] = []
    ended = threading.Event()

    def post(caller: int) -> None:
        for number in range(10_000):
            order = f"order {number} of {caller}"
            try:
                status, _ = ask(port, "POST", "/orders", order.encode())
            except (OSError, http.client.HTTPException):
                continue  # it was killed: whether the order is stored is not known
            if status == 202:
                accepted.append(order)
            if ended.is_set():
                return

    callers = [threading.Thread(target=post, args=(caller,)) for caller in range(4)]
    for caller in callers:
        caller.start()
    for kills in (1, 2, 3):
        with running(*command, WAL=str(tmp_path / "wal"), DATABASE=database) as process:
            wait_until(partial(has_at_least, accepted, 60 * kills))
            if kills < 3:
                process.kill()
                continue
            ended.set()
            for caller in callers:
                caller.join()
            wait_until(lambda: set(accepted) <= set(texts(database)))
            process.send_signal(signal.SIGTERM)
            assert "Traceback" not in process.communicate(timeout=TIMEOUT_SECONDS)[1]
    assert max(Counter(texts(database)).values()) == 1


def has_at_least(found: list[str], count: int) -> bool:
    return len(found) >= count


def texts(database: str) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM orders")]


@pytest.mark.usefixtures("interruptible")
def test_two_places_get_every_order_each_at_its_own_speed(tmp_path: Path) -> None:
    """After a kill both continue: every order in order, at most a batch of each again; then nothing waits."""
    port = free_port()
    command = (sys.executable, str(EXAMPLES / "aiohttp_two_speeds.py"), str(tmp_path / "wal"), str(port))
    with printing(tmp_path / "first", *command) as process:
        for number in range(40):
            assert ask(port, "POST", "/orders", b"%d" % number)[0] == 202
        process.kill()
    with printing(tmp_path / "second", *command) as process:
        for number in range(40, 60):
            assert ask(port, "POST", "/orders", b"%d" % number)[0] == 202
        wait_until(lambda: json.loads(ask(port, "GET", "/behind")[1]) == {"billing": 0, "search": 0})
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 0
    printed = [(tmp_path / part).read_text().splitlines() for part in ("first", "second")]
    for name in ("billing", "search"):
        before, after = ([int(line.split()[1]) for line in lines if line.startswith(f"{name} ")] for lines in printed)
        assert before == list(range(len(before)))
        assert after == list(range(after[0], 60)) and after[0] <= len(before)


def test_a_csv_file_goes_through_a_service_unchanged(tmp_path: Path) -> None:
    """Commas, quotes, line ends and all; a second `out` adds nothing, and one after another `in` adds only that."""
    rows = [[f"item {number}", 'with "quotes", commas', "two\r\nlines", "Zürich €"] for number in range(2_500)]
    source, copy = tmp_path / "prices.csv", tmp_path / "copy.csv"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    with Process(tmp_path / "wal") as service:
        program = (sys.executable, str(EXAMPLES / "csv_through.py"))
        for times in (1, 2):
            assert run(*program, "in", service.address, str(source)).returncode == 0
            for _ in range(2):
                done = run(*program, "out", service.address, str(copy))
                assert (done.returncode, done.stderr) == (0, "")
                assert copy.read_bytes() == source.read_bytes() * times


def test_workers_take_over_the_jobs_of_one_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs are done, and each worker does those of a customer in order; at the end of the queues, all end."""
    monkeypatch.setenv("IDLE_SECONDS", "1")
    program = str(EXAMPLES / "several_workers.py")
    jobs = [f"customer{number % 25} {number}" for number in range(500)]
    with Process(tmp_path / "wal") as service:
        work = (sys.executable, program, "work", service.address)
        files = [tmp_path / name for name in "abc"]
        with (
            printing(files[0], *work) as first,
            printing(files[1], *work) as second,
            printing(files[2], *work) as third,
        ):
            assert run(sys.executable, program, "send", service.address, input="\n".join(jobs[:250])).returncode == 0
            wait_until(lambda: done_by(*files) >= set(jobs[:250]))
            busy = max(files[:2], key=lambda file: file.stat().st_size)
            (first, second)[files.index(busy)].kill()
            assert run(sys.executable, program, "send", service.address, input="\n".join(jobs[250:])).returncode == 0
            wait_until(lambda: done_by(*files) >= set(jobs))
            with BlockingRecordLogClient(service.address) as client:
                for queue in client.list_queues():
                    client.seal_queue(queue)
            ends = {process.wait(TIMEOUT_SECONDS) for process in (first, second, third)}
            assert ends == {0, -signal.SIGKILL}  # those that are left end with the queues
    for customer in range(25):
        for file in files:
            mine = [int(line.split()[1]) for line in lines_of(file) if line.startswith(f"customer{customer} ")]
            assert list(dict.fromkeys(mine)) == sorted(set(mine))


def done_by(*files: Path) -> set[str]:
    return {line for file in files for line in lines_of(file)}


def lines_of(file: Path) -> list[str]:
    return re.findall(r"(.*)\n", file.read_text())  # a line that is being written is not done


def test_what_cannot_be_processed_is_set_aside_and_the_last_hour_can_be_read_again(tmp_path: Path) -> None:
    """Each order is billed once, the broken one is in the other queue with its reason, and all are in the replay."""
    command = (sys.executable, str(EXAMPLES / "set_aside.py"), str(tmp_path / "wal"))
    first = run(*command, input="1\nbroken\n3\n")
    assert (first.returncode, first.stdout, at_any_speed(first.stderr)) == (0, "billed 1\nbilled 3\n", "")
    assert run(*command, input="4\n").stdout == "billed 4\n"
    assert run(*command, "--replay").stdout == "0 1\n1 broken\n2 3\n3 4\n"
    with ReadOnlyLog.open(str(tmp_path / "wal")) as log:
        (dead,) = [json.loads(payload) for _, payload in log.range("orders.dead")]
    assert (dead["position"], dead["text"]) == (1, "broken") and "invalid literal for int()" in dead["why"]


@contextmanager
def printing(file: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run *command* with its standard output in *file*."""
    with file.open("wb") as output, subprocess.Popen(command, stdout=output, env=os.environ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.05)
