"""The table of faults in docs/operations, row by row: a real process meets the fault, and shows what the row says.

Columns: what the service logs (… stands for anything), a series of `/metrics` with its value, what the page shows, the
exit code, and the alert, which tests/deep/examples have fire. `-` means that there is none.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

import mrecordlog_async.service
from mrecordlog_async.client import RecordLogClient
from tests import damage
from tests.cli.running import build, three_queues
from tests.service.operated import DAMAGED, FAILED, NEARLY_FULL, STUCK, Operated, Supervisor, wait_until
from tests.serving import config

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


class Row(NamedTuple):
    """A row of the table."""

    fault: str
    log: str
    metric: str
    page: str
    code: str
    alert: str

    def check_log(self, service: Operated) -> None:
        """Wait for each line that the row names."""
        for line in re.findall(r"`([^`]+)`", self.log):
            service.line(".*".join(map(re.escape, line.split("…"))))

    def check_metric(self, service: Operated) -> None:
        name, comparison, value = re.fullmatch(r"`(\S+)` (=|≥) ([\d.]+)", self.metric).groups()  # type: ignore[union-attr]
        found = service.metric(name)
        assert found == float(value) if comparison == "=" else found >= float(value), (name, found)

    def check_page(self, service: Operated) -> None:
        shown = ".*".join(map(re.escape, self.page.strip("`").split("…")))
        assert re.match(shown, service.page()), service.page()

    def check_code(self, code: int) -> None:
        assert str(code if code >= 0 else 128 - code) == self.code


def rows() -> Iterator[Row]:
    """Yield the rows of the table in the page."""
    lines = PAGE.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| fault |"))
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            return
        yield Row(*(cell.strip() for cell in line.replace(r"\|", "¦").strip("|").split("|")))


ROWS = {row.fault: row for row in rows()}
CHECKED: set[str] = set()


def row_of(fault: str) -> Row:
    CHECKED.add(fault)
    return ROWS[fault]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data" / "wal"


@pytest.fixture(autouse=True)
def parent_of_the_directory(directory: Path) -> None:
    directory.parent.mkdir()


@pytest.fixture(scope="module", autouse=True)
def hang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[None]]:
    """The disk of one service hangs while the other tests of this file run, so that nobody waits ten seconds for it."""
    directory = tmp_path_factory.mktemp("hang") / "wal"
    with ThreadPoolExecutor() as threads:
        yield threads.submit(_hang_for_ten_seconds, directory, threads)


def _hang_for_ten_seconds(directory: Path, threads: ThreadPoolExecutor) -> None:
    row = row_of("disk hangs for 10 s")
    with Operated(directory) as service:
        assert service.ready().append(b"a") == 200
        (service.control / "hang").touch()
        append = threads.submit(service.append, b"b")
        while service.metric("mrecordlog_under_way_seconds") < 10:
            time.sleep(0.25)
        row.check_metric(service)
        row.check_page(service)
        assert (service.call("GET", "/readyz")[0], service.call("GET", "/healthz")[0]) == (503, 200)
        (service.control / "hang").unlink()
        assert append.result() == 200
        row.check_log(service)
        assert service.ready().records() == {0: "a", 1: "b"}
        assert service.stop() == 0


def test_a_disk_that_fails_once_costs_seconds_and_no_record(directory: Path) -> None:
    """The supervisor starts the service again, the producer sends the record again, and each is stored once."""
    row = row_of("disk EIO once")
    with Operated(directory, *config(directory.parent, failure_grace="10ms")) as service:
        service.ready()
        supervisor = Supervisor(service)
        asyncio.run(ingest(service, 60))
        assert list(service.ready().records().values()) == [f"{number}" for number in range(60)]
        row.check_log(service)
        service.process.send_signal(signal.SIGTERM)
        supervisor.join()
        first, last = supervisor.codes
        row.check_code(first)
        assert last == 0


async def ingest(service: Operated, count: int) -> None:
    """Append *count* records one after the other; the disk fails once in between."""
    async with RecordLogClient(f"http://127.0.0.1:{service.port}") as client, client.producer("q", create=True) as q:
        for number in range(count):
            if number == count // 3:
                (service.control / "eio-once").touch()
            await q.append_record(f"{number}".encode())


def test_a_failed_log_shows_on_the_page_and_in_the_metrics(directory: Path) -> None:
    """For as long as it is served for reads."""
    row = row_of("disk EIO once")
    with Operated(directory, *config(directory.parent, failure_grace="1h")) as service:
        assert service.ready().append(b"a") == 200
        (service.control / "eio-once").touch()
        assert service.append(b"b") == 503
        row.check_metric(service)
        row.check_page(service)
        assert service.records() == {0: "a"}
        row.check_code(service.stop())


def test_a_disk_that_fails_for_ever_ends_every_start(directory: Path) -> None:
    """Each start says why it ends; the log is not damaged."""
    row = row_of("disk EIO for ever")
    with Operated(directory, *config(directory.parent, failure_grace="10ms")) as service:
        assert service.ready().append(b"a") == 200
        (service.control / "eio").touch()
        assert service.append(b"b") == 503
        assert service.wait() == int(row_of("disk EIO once").code)
        service.start()
        row.check_code(service.wait())
        row.check_log(service)
        (service.control / "eio").unlink()
        service.start()
        assert service.ready().records()[0] == "a"


def test_a_full_disk_refuses_appends_until_space_is_freed(directory: Path) -> None:
    """The process goes on; nothing has to be restarted."""
    row = row_of("disk full, then freed")
    with Operated(directory, "--segment-bytes", "128KiB") as service:
        assert service.ready().append(b"a") == 200
        (service.control / "full").touch()
        assert service.append(bytes(300_000)) == 507
        row.check_log(service)
        row.check_metric(service)
        row.check_page(service)
        (service.control / "full").unlink()
        assert service.append(b"b") == 200
        assert service.stop() == 0


def load(service: Operated, stop: threading.Event, acknowledged: list[tuple[int, str]]) -> None:
    """Append until *stop*, and note what was acknowledged."""
    number = 0
    while not stop.is_set():
        payload = f"{threading.get_ident()} {number}"
        status, body = service.call("POST", "/v1/queues/q/records?create=1", payload.encode())
        if status == 200:
            acknowledged.append((int(re.findall(rb'"position":(\d+)', body)[0]), payload))
        number += 1


@pytest.mark.parametrize("fault", ["kill -9", "SIGTERM under load"])
def test_a_process_that_ends_under_load_loses_nothing_that_it_acknowledged(directory: Path, fault: str) -> None:
    """Whether it is asked to end or killed."""
    row = row_of(fault)
    with Operated(directory) as service:
        service.ready()
        stop, acknowledged = threading.Event(), list[tuple[int, str]]()
        callers = [threading.Thread(target=load, args=(service, stop, acknowledged)) for _ in range(4)]
        for caller in callers:
            caller.start()
        wait_until(lambda: len(acknowledged) > 50)
        service.process.send_signal(signal.SIGKILL if fault == "kill -9" else signal.SIGTERM)
        row.check_code(service.wait())
        stop.set()
        for caller in callers:
            caller.join()
        service.start()
        service.ready()
        row.check_log(service)
        if row.metric != "-":
            row.check_metric(service)
        records = service.records()
        assert {position: records[position] for position, _ in acknowledged} == dict(acknowledged)


def test_damage_ends_the_start_and_says_what_to_do(directory: Path) -> None:
    """Nothing is changed, and no supervisor starts it again."""
    row = row_of("damaged segment")
    build(directory, three_queues)
    damage.flip_byte(damage.segments(directory)[1], 40_000)
    with Operated(directory) as service:
        row.check_code(service.wait())
        row.check_log(service)
        assert service.lines[-1]["exit_code"] == 3


def test_a_lost_segment_ends_the_start_and_says_what_to_do(directory: Path) -> None:
    """A file that was removed is damage too."""
    row = row_of("lost segment")
    build(directory, three_queues)
    lost = damage.segments(directory)[1]
    lost.unlink()
    with Operated(directory) as service:
        row.check_code(service.wait())
        row.check_log(service)


def test_a_second_process_is_refused_and_names_the_first(directory: Path) -> None:
    """With its process id and its command."""
    row = row_of("second process")
    with Operated(directory, cold=True) as first, ExitStack() as stack:
        first.ready()
        second = stack.enter_context(Operated(directory, *config(directory.parent, lock_seconds="100ms")))
        row.check_code(second.wait())
        row.check_log(second)
        assert (second.lines[-1]["owner_pid"], first.append(b"a")) == (first.process.pid, 200)


def test_the_queue_that_fills_the_memory_is_named(directory: Path) -> None:
    """The other queues are refused too, so the log says whose records must be truncated."""
    row = row_of("memory full by one queue, with `--beyond-memory refuse`")
    limits = ["--memory-bytes", "2MiB", *config(directory.parent, record_bytes="1MiB", pending_bytes="1MiB")]
    with Operated(directory, "--beyond-memory", "refuse", *limits) as service:
        service.ready()
        statuses = {service.call("POST", "/v1/queues/idle/records?create=1", bytes(300_000))[0] for _ in range(10)}
        assert statuses == {200, 429}
        row.check_log(service)
        row.check_metric(service)
        row.check_page(service)
        assert service.call("POST", "/v1/queues/idle/truncate", b'{"position":5}')[0] == 200
        assert service.append(b"a") == 200
        assert service.stop() == 0


def test_the_consumer_that_fills_the_disk_is_named(directory: Path) -> None:
    """Records leave memory until the disk is full; then the log, the page and the error say who must read."""
    row = row_of("disk full by one consumer")
    with Operated(directory, "--memory-bytes", "2MiB", "--disk-bytes", "16MiB") as service:
        service.ready()
        assert service.call("PUT", "/v1/queues/idle", b"{}")[0] == 201
        assert service.call("PUT", "/v1/queues/idle/consumers/asleep", b"{}")[0] == 201
        problem = b""
        while not problem:
            status, body = service.call("POST", "/v1/queues/idle/records", bytes(300_000))
            problem = body if status == 429 else b""
        assert json.loads(problem)["consumer"] == "asleep"
        row.check_log(service)
        row.check_metric(service)
        row.check_page(service)
        assert service.stats()["usage"]["disk_only_bytes"] > 2 << 20
        position = json.dumps({"position": json.loads(service.call("GET", "/v1/queues/idle")[1])["next_position"] - 2})
        assert service.call("DELETE", "/v1/queues/idle/consumers/asleep")[0] == 204
        assert service.call("POST", "/v1/queues/idle/truncate", position.encode())[0] == 200
        assert service.append(b"a") == 200
        assert service.stop() == 0


def test_a_reader_that_meets_damage_is_counted_and_the_service_continues(directory: Path) -> None:
    """An old record is damaged on the disk: its reader gets an error, and everybody else what they want."""
    row = row_of("damaged record that had left memory")
    with Operated(directory, "--memory-bytes", "2MiB") as service:
        service.ready()
        for _ in range(20):
            assert service.call("POST", "/v1/queues/old/records?create=1", bytes(300_000))[0] == 200
        wait_until(lambda: service.stats()["usage"]["disk_only_bytes"] > 300_000)
        oldest = sorted(directory.glob("*.runs"))[0]
        damage.flip_byte(oldest, 5_000)
        damage.flip_byte(oldest.with_suffix(""), 30_000)
        assert service.call("GET", "/v1/queues/old/records?limit=1")[0] == 500
        row.check_log(service)
        row.check_metric(service)
        row.check_page(service)
        assert service.append(b"a") == 200
        assert service.call("GET", "/v1/queues/old/records?start=19")[0] == 200
        assert service.stop() == 0


def test_a_clock_that_jumps_changes_no_position_and_no_order(directory: Path) -> None:
    """An hour back and a year ahead: only the times in the log jump with it."""
    row = row_of("clock jumps")
    with Operated(directory) as service:
        assert service.ready().append(b"0") == 200
        for number, jump in enumerate((-3_600, 31_536_000), 1):
            (service.control / "clock").write_text(f"{jump}")
            assert service.append(f"{number}".encode()) == 200
        row.check_page(service)
        assert service.records() == {0: "0", 1: "1", 2: "2"}
        row.check_code(service.stop())
        row.check_log(service)
        service.start()
        assert service.ready().records() == {0: "0", 1: "1", 2: "2"}


@pytest.mark.parametrize("years", [10, -50], ids=["ahead", "in the past"])
def test_a_clock_that_is_wrong_at_the_start_removes_nothing(directory: Path, years: int) -> None:
    """The service waits, and says so; once the clock is right, it ages what was stored meanwhile from the start."""
    row = row_of("clock wrong at the start")
    (directory.parent / "serve.toml").write_text('[queues.q]\nmax_age = "7d"\n')
    with Operated(directory, "--config", str(directory.parent / "serve.toml")) as service:
        assert service.ready().append(b"0") == 200
        for number in (1, 2):  # killed in between: the records of a wrong clock do not make it right
            service.process.kill()
            service.wait()
            (service.control / "clock").write_text(f"{years * 31_557_600}")
            service.start()
            assert service.ready().append(f"{number}".encode()) == 200
        row.check_log(service)
        row.check_metric(service)
        row.check_page(service)
        row.check_code(service.stop())
        (service.control / "clock").unlink()
        service.start()
        assert service.ready().records() == {0: "0", 1: "1", 2: "2"}


def test_few_descriptors_cost_connections_and_not_the_log(directory: Path) -> None:
    """Connections above what the limit allows are refused and counted; the others store records."""
    row = row_of("descriptor limit")

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with Operated(directory, "--segment-bytes", "128KiB", preexec=few) as service, ExitStack() as stack:
        service.ready()
        hogs = []
        for _ in range(24):
            hog = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            hog.sendall(b"POST /v1/queues/q/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1")
            hogs.append(hog)
        refused = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        assert b" 503 " in refused.recv(1_000).partition(b"\r\n")[0]
        for hog in hogs:
            hog.close()
        wait_until(lambda: service.append(bytes(100_000)) == 200)
        assert service.append(bytes(100_000)) == 200
        row.check_log(service)
        row.check_metric(service)
        row.check_page(service)
        assert service.stop() == 0


def test_a_disk_that_hangs_is_seen_while_it_hangs(hang: Future[None]) -> None:
    """In the log after a second, in the metrics and on the page; not ready after stall_seconds. Then it is again."""
    hang.result()


def test_every_row_of_the_table_has_a_test() -> None:
    """A row that nothing produces is a claim."""
    source = Path(__file__).read_text()
    named = set(re.findall(r'row_of\("([^"]+)"\)', source)) | set(re.findall(r'"(kill -9|SIGTERM under load)"', source))
    assert named == set(ROWS)


def test_the_sentences_of_the_page_are_those_of_its_script() -> None:
    """The page itself is tested in a browser; here are the members that it is made of."""
    script = (Path(mrecordlog_async.service.__file__).parent / "page" / "state.js").read_text()
    assert f"`{FAILED}${{stats.failure}}" in script
    assert f"`{STUCK}${{" in script
    assert f"{DAMAGED}: " in script
    assert f"{NEARLY_FULL}${{" in script
    assert "stats.under_way_seconds > 1" in script


def test_the_help_of_the_wrapper_is_the_help_of_the_service() -> None:
    """The process under test differs from `mrecordlog` in its disk and its clock only."""
    command = [sys.executable, "-m", "tests.faulty_serve", "/nonexistent", "serve", "--help"]
    plain = [sys.executable, "-m", "mrecordlog_async", "serve", "--help"]
    texts = [subprocess.run(one, capture_output=True, text=True, timeout=60).stdout for one in (command, plain)]
    assert texts[0] == texts[1]
