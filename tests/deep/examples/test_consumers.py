"""The examples that consume run as a person would run them, even through kill -9 and SIGTERM."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mrecordlog_async import ReadOnlyLog
from mrecordlog_async.client import RecordLogClient
from tests.deep.examples.test_examples import EXAMPLES, ask, run, running
from tests.docs.blocks import ROOT, blocks
from tests.programs import load_program
from tests.said import at_any_speed
from tests.served import serving
from tests.serving import TIMEOUT_SECONDS, free_port


def test_worker_continues_after_kill_9(tmp_path: Path) -> None:
    """What was acknowledged does not come again, what was not does, and nothing is skipped."""
    command = (sys.executable, str(EXAMPLES / "worker.py"), str(tmp_path / "wal"))
    with (tmp_path / "delivered").open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output)
        assert process.stdin is not None
        process.stdin.write(b"".join(b"line %d\n" % number for number in range(300)))
        process.stdin.flush()
        while (tmp_path / "delivered").read_bytes().count(b"\n") < 150:
            time.sleep(0.01)
        process.kill()
        process.communicate()
    whole = (tmp_path / "delivered").read_bytes().count(b"\n")
    rest = run(*command, input="last\n")
    assert (rest.returncode, at_any_speed(rest.stderr)) == (0, "")
    again = rest.stdout.splitlines()
    first = int(again[0].split()[0])
    assert whole - 100 <= first <= whole  # nothing is skipped; at most one batch comes again
    assert [int(line.split()[0]) for line in again] == list(range(first, first + len(again)))
    assert again[-1].endswith(" last")
    with ReadOnlyLog.open(str(tmp_path / "wal")) as log:
        assert log.queue_summary("orders").records == 0


def test_two_consumers_at_different_speeds(tmp_path: Path) -> None:
    """Both take every record; records are removed after the slower one, and at the end none is left."""
    done = run(sys.executable, str(EXAMPLES / "two_consumers.py"), str(tmp_path / "wal"))
    assert (done.returncode, at_any_speed(done.stderr)) == (0, "")
    taken = re.findall(r"(\w+) took (\d+), the log still holds (\d+)", done.stdout)
    for name in ("billing", "search"):
        assert sum(int(count) for found, count, _ in taken if found == name) == 1_000
    assert taken[-1][2] == "0"


@pytest.mark.usefixtures("interruptible")
def test_batches_become_parquet_files(tmp_path: Path) -> None:
    """Every acknowledged request is in exactly one file, after a graceful end without waiting for a full batch."""
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    port = free_port()
    arguments = (str(tmp_path / "wal"), str(tmp_path / "lake"), str(port))
    for round_ in range(2):
        with running(sys.executable, str(EXAMPLES / "batch_to_parquet.py"), *arguments) as process:
            for number in range(3):
                assert ask(port, "POST", "/ingest", b"%d" % (3 * round_ + number))[0] == 202
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_SECONDS) == 0
    files = sorted((tmp_path / "lake").iterdir())
    rows = [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
    assert rows == [{"position": number, "payload": b"%d" % number} for number in range(6)]


def test_the_worker_goes_on_after_a_line_that_is_no_text(tmp_path: Path) -> None:
    """A payload is any bytes: one that is not UTF-8 neither ends this run nor stops every later one."""
    command = (sys.executable, str(EXAMPLES / "worker.py"), str(tmp_path / "wal"))
    done = subprocess.run(command, input=b"\xff\nnext\n", capture_output=True, timeout=TIMEOUT_SECONDS)
    assert done.stdout.decode().splitlines() == ["0 \N{REPLACEMENT CHARACTER}", "1 next"]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("page", ["README.md", "docs/frameworks.md"])
def test_the_embeds_of_the_pages_work_as_they_stand(page: str, tmp_path: Path) -> None:
    """A reader who copies a block, starts it and posts a click gets a position, and reads it back at the page's API."""
    found = [block.text for block in blocks(ROOT / page) if block.language == "python" and "ingest" in block.text]
    for number, text in enumerate(found):
        name, port = f"block_{number}", free_port()
        work = tmp_path / name
        work.mkdir()
        fastapi = "FastAPI" in text
        (work / f"{name}.py").write_text(
            text if fastapi else f"{text}\nweb.run_app(app, host='127.0.0.1', port={port})\n"
        )
        server = ("-m", "uvicorn", f"{name}:app", "--port", str(port)) if fastapi else (f"{name}.py",)
        with running(sys.executable, *server, cwd=work) as process:
            status, body = ask(port, "POST", "/ingest", b"click")
            assert (status // 100, json.loads(body)) == (2, {"position": 0})
            assert ask(port, "GET", "/wal/v1/queues/clicks")[0] == 200
            process.send_signal(signal.SIGTERM)
            assert "Traceback" not in process.communicate(timeout=TIMEOUT_SECONDS)[1]
    assert found


async def test_a_group_of_workers_delivers_every_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two workers divide the queues; each record is delivered, and those of one key are in one queue, in order."""
    group = load_program(EXAMPLES / "group_of_workers.py")
    async with serving(tmp_path / "wal") as served, RecordLogClient(served.url) as client:
        await client.create_queues(group.PARTITIONS)
        for number in range(30):
            await group.produce(client, b"key %d" % (number % 5), b"%d" % number)
        for queue in group.PARTITIONS:
            await client.seal_queue(queue)
        await asyncio.gather(group.worker(served.url), group.worker(served.url))
        assert all(not one.records for queue in group.PARTITIONS for one in served.log.consumers(queue).values())
    delivered = [payload for line in capsys.readouterr().out.splitlines() for payload in re.findall(r"b'(\d+)'", line)]
    assert sorted(map(int, delivered)) == list(range(30))
    for key in range(5):
        of_key = [int(payload) for payload in delivered if int(payload) % 5 == key]
        assert of_key == sorted(of_key)


def test_a_record_that_always_fails_is_set_aside(tmp_path: Path) -> None:
    """The others are processed, and it is in the second queue with the reason."""
    done = run(sys.executable, str(EXAMPLES / "dead_letters.py"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "set aside: 1 ValueError('no price')\n")
