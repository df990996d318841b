"""top shows rates from two samples: as a table, as lines, or as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mrecordlog_async.cli.main import main
from mrecordlog_async.cli.top import ORDERS, Order, Sample, Source, lines, picture
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.protocol.schemas import (
    RecentTimesResponse,
    StatsResponse,
    TimesResponse,
    UsageResponse,
)
from mrecordlog_async.service.options import ServiceOptions
from tests.cli.running import Ran, build, mrecordlog, three_queues
from tests.served import serving
from tests.serving import Process, free_port


def stats(p50: float | None = 0.0004, p99: float | None = 0.0064, **more: Any) -> StatsResponse:
    """Return what a service reports that is half full of memory, and nearly of its disk."""
    usage = UsageResponse(
        memory_bytes=50,
        memory_limit_bytes=100,
        disk_bytes=95,
        disk_limit_bytes=100,
        pending_limit_bytes=100,
        segments=3,
        disk_only_bytes=more.pop("disk_only_bytes", 0),
    )
    recent = RecentTimesResponse(commit_seconds=TimesResponse(p50=p50, p99=p99))
    return StatsResponse("open", 1.0, 0, 0, 0, {}, usage=usage, last_minute=recent, **more)


def queue(name: str, first: int, following: int, queue_id: int = 1) -> QueueSummary:
    return QueueSummary(name, queue_id, first, following, following - first, 10 * (following - first), 0)


async def never() -> Sample:
    """Stand for a log that is not asked."""
    raise AssertionError


def source(name: str = "here", *queues: QueueSummary, **sample: Any) -> Source:
    """Return a log with one sample."""
    made = Source(name, never)
    made.add(1.0, Sample(queues, sample.get("behind", ()), sample.get("stats")))
    return made


def two_samples(*, service: StatsResponse | None = None) -> Source:
    made = Source("here", never)
    made.add(10.0, Sample([queue("a", 0, 10), queue("[red]b", 0, 5, 2)], (), service or stats()))
    made.add(12.0, Sample([queue("a", 4, 30), queue("[red]b", 0, 5, 2)], (), service or stats()))
    return made


def test_rates_are_positions_a_second() -> None:
    """Rates count what was appended and truncated between two samples; the busiest queue is first."""
    facts = two_samples().facts()
    assert [(one["queue"], one["in_per_second"], one["out_per_second"]) for one in facts["queues"]] == [
        ("a", 10.0, 2.0),
        ("[red]b", 0.0, 0.0),
    ]


def test_a_queue_recreated_under_its_name_begins_at_zero() -> None:
    """A recreated queue has a new id: no rate mixes two queues."""
    log = two_samples()
    log.add(13.0, Sample([queue("a", 0, 1_000, queue_id=9)], (), stats()))
    (row,) = log.facts()["queues"]
    assert row["in_per_second"] == 0.0


def drawn(sources: list[Source], width: int = 140, height: int = 40, order: Order = ORDERS["i"]) -> list[str]:
    console = Console(width=width, height=height, file=StringIO())
    console.print(picture(sources, order, width, height))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_picture_shows_names_as_they_are() -> None:
    """No queue name is interpreted as colour markup; limits, totals and times are shown."""
    shown = "\n".join(drawn([two_samples()]))
    assert "[red]b" in shown
    assert re.search(r"memory +━+ +50 B of 100 B", shown)
    assert "here  open  3 segments  commit p50 400 µs, p99 6.4 ms" in shown
    assert "2 queues  310 B  in 10/s  out 2/s" in shown


def test_memory_that_is_full_by_design_says_what_is_on_the_disk_only() -> None:
    """The JSON has that too."""
    log = two_samples(service=stats(disk_only_bytes=3 << 20, beyond_memory="disk"))
    assert any(line.endswith("50 B of 100 B, and 3.0 MiB on the disk only") for line in drawn([log]))
    assert log.facts()["disk_only_bytes"] == 3 << 20


@pytest.mark.parametrize(
    ("p50", "p99", "shown"),
    [
        (0.0002, 0.0512, "commit p50 200 µs, p99 51.2 ms"),
        (3.2768, 52.4288, "commit p50 3.3 s, p99 52.4 s"),
        (26.2144, None, "commit p50 26.2 s, p99 > 52 s"),
        (None, None, "commit p50 > 52 s, p99 > 52 s"),
        (0.0, 0.0, "commit p50 -, p99 -"),
    ],
)
def test_times_of_a_slow_disk_are_shown_as_far_as_they_are_known(
    p50: float | None, p99: float | None, shown: str
) -> None:
    """Seconds are seconds, and a time above the last bound of the histogram is said to be just that."""
    log = source(stats=stats(p50, p99))
    assert shown in "\n".join(drawn([log]))
    assert log.facts()["commit_seconds"] == {"p50": p50, "p99": p99}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"failure": "EIO", "under_way_seconds": 9.0}, "  EIO"),
        ({"under_way_seconds": 6.9}, "  the disk has not finished a commit for 6.9 s"),
        ({"damaged": {"segment": 2}}, "  reads that met damaged records on the disk: 2"),
        ({"under_way_seconds": 0.9, "uptime_seconds": 1.0}, "  up 1 s"),
    ],
    ids=["failed", "hanging", "damaged", "well"],
)
def test_a_log_that_is_open_and_not_well_says_so(changes: dict[str, Any], said: str) -> None:
    """A service whose disk hangs is open; the head has what /readyz and the page say."""
    assert source(stats=stats(**changes)).head().endswith(said)


def test_a_narrow_terminal_shows_fewer_columns_and_whole_numbers() -> None:
    """At 60 columns names are cut before numbers, and every line fits."""
    many = QueueSummary("a-queue-with-a-name-that-is-far-too-long", 1, 10**9, 10**9 + 98_765_432, 98_765_432, 10**12, 7)
    log = source("here", many, stats=stats())
    shown = drawn([log], 60)
    assert max(map(len, shown)) <= 60
    assert any("98765432" in line and "931.3 GiB" in line for line in shown)
    assert not any("1000000000" in line for line in shown)
    assert any("1000000000" in line for line in drawn([log], 120))


def test_every_key_sorts_by_its_column() -> None:
    """The column that sorts is marked and shown even where it would not fit."""
    log = source("here", queue("small", 0, 3, 1), QueueSummary("large", 2, 5, 6, 1, 9_000, 4))
    for key, expected in {"n": "large", "b": "large", "r": "small", "s": "small"}.items():
        shown = drawn([log], 60, 24, ORDERS[key])
        assert next(line for line in shown if line.startswith(("small", "large"))).startswith(expected), key
        assert any("▼" in line for line in shown)


def test_the_slowest_consumer_of_each_queue_is_named() -> None:
    """A wide terminal shows who is furthest behind, and sorts by it; queues without consumers come last."""
    behind = [("a", "billing", 3), ("a", "fast", 1), ("b", "a-consumer-with-a-long-name", 2_000)]
    log = source("here", queue("a", 0, 9, 1), queue("b", 0, 9, 2), queue("c", 0, 9, 3), behind=behind)
    shown = [line.split() for line in drawn([log], 130, 24, ORDERS["c"]) if line[:2] in ("a ", "b ", "c ")]
    assert [line[0] for line in shown] == ["b", "a", "c"]
    assert "2,000" in shown[0]
    assert ("billing" in shown[1], "3" in shown[1]) == (True, True)


def test_a_service_that_is_gone_stays_with_the_time_since_when() -> None:
    """Its last numbers stay without rates; another server is still shown."""
    gone, there = two_samples(), source("there", queue("c", 0, 1))
    gone.fail("connection refused", "12:03:05")
    gone.fail("connection refused", "12:03:06")
    shown = drawn([gone, there])
    assert shown[0] == "here  unreachable since 12:03:05: connection refused"
    assert any(line.split()[:2] == ["there", "c"] for line in shown)
    assert gone.facts()["since"] == "12:03:05"
    gone.add(14.0, Sample([queue("a", 4, 30)], (), stats()))
    assert drawn([gone])[0].startswith("here  open")


def test_lines_without_a_terminal_are_aligned() -> None:
    """Plain text, a header and a line for each queue."""
    log = source("here", queue("a", 4, 30), queue("[red]b", 0, 5, 2))
    by_name = list(lines([log], ORDERS["n"]))
    assert by_name[0] == "here  directory\n"
    assert by_name[1].split() == "queue first next records bytes in/s out/s oldest consumer behind keeps from".split()  # noqa: SIM905
    assert by_name[3].split()[:4] == ["a", "4", "30", "26"]
    assert [line.split()[0] for line in by_name[2:]] == ["[red]b", "a"]


def test_a_directory_can_be_watched(tmp_path: Path) -> None:
    """Without a service, queues and positions are shown."""
    directory = build(tmp_path / "wal", three_queues)
    ran = mrecordlog("top", directory, "--once", "--interval", "0.1", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert [one["queue"] for one in json.loads(ran.out)["queues"]] == ["orders", "audit", "idle"]


def test_a_service_can_be_watched(directory: Path) -> None:
    """A service's state, usage and times are shown as well."""
    with Process(directory) as service:
        ran = mrecordlog("top", service.address, "--once", "--interval", "0.1", "--json")
    facts = json.loads(ran.out)
    assert (ran.code, facts["state"], facts["queues"]) == (0, "open", [])
    assert facts["memory"]["limit_bytes"] > 0


def test_several_logs_are_watched_together(tmp_path: Path) -> None:
    """Each log has its own sample; one that cannot be reached is reported, and the others go on."""
    directory = build(tmp_path / "wal", three_queues)
    gone = f"http://127.0.0.1:{free_port()}"
    ran = mrecordlog("top", directory, gone, "--once", "--interval", "0.1", "--json")
    first, second = map(json.loads, ran.out.splitlines())
    assert (ran.code, first["source"], len(first["queues"])) == (0, str(directory), 3)
    assert (second["source"], second["state"], second["error"]) == (gone, "unreachable", "connection refused")


async def test_each_service_may_have_a_name_and_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NAME=FILE is for the service NAME=URL, FILE for the others; a wrong token and a wrong name are named."""
    files = {name: tmp_path / f"token-{name}" for name in "ab"}
    for name, file in files.items():
        file.write_text(f"0123456789abcdef-of-{name}")
    options = [ServiceOptions(tokens=frozenset([file.read_bytes()])) for file in files.values()]
    async with serving(tmp_path / "a", options[0]) as a, serving(tmp_path / "b", options[1]) as b:

        async def top(*tokens: str) -> Ran:
            logs = (a.url, f"b={b.url}", "--once", "--json", "--interval", "10ms")
            given = (each for file in tokens for each in ("--token-file", file))
            return Ran(await asyncio.to_thread(main, ["top", *logs, *given]), *capsys.readouterr())

        both = await top(str(files["a"]), f"b={files['b']}")
        shown = [json.loads(line) for line in both.out.splitlines()]
        assert [(one["source"], one["state"]) for one in shown] == [(a.url, "open"), ("b", "open")]
        second = json.loads((await top(str(files["a"]))).out.splitlines()[1])
        assert (second["source"], second["state"], "401" in second["error"]) == ("b", "unreachable", True)
        nobody = await top(f"c={files['a']}")
        assert (nobody.code, "no LOG is c=http://host:port" in nobody.err) == (2, True)
        twice = await top(str(files["a"]), str(files["b"]))
        assert (twice.code, "given twice for all services" in twice.err) == (2, True)


def test_a_time_that_shows_nothing_is_refused(tmp_path: Path) -> None:
    """Without time between two samples there are no rates."""
    ran = mrecordlog("top", tmp_path, "--interval", "0", "--once")
    assert (ran.code, "--interval" in ran.err) == (2, True)


TERMINAL = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}


@contextmanager
def top_on_a_terminal(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, Callable[[], bool]]]:
    """Yield a `top` that has drawn its table, its terminal's other end, and a check that the terminal is as before."""
    directory = build(tmp_path / "wal", three_queues)
    controller, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)

    def is_as_before() -> bool:
        return termios.tcgetattr(terminal) == before

    command = [sys.executable, "-m", "mrecordlog_async", "top", str(directory), "--interval", "0.1"]
    environment = {**os.environ, **TERMINAL}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        try:
            read_until(controller, "in/s ▼")
            yield process, controller, is_as_before
        finally:
            process.kill()
    assert is_as_before()
    os.close(controller)
    os.close(terminal)


@pytest.mark.parametrize("end", ["q", "SIGTERM"])
def test_keys_sort_and_quit_on_a_real_terminal(tmp_path: Path, end: str) -> None:
    """On a terminal the table is drawn, a key sorts it, q or a signal ends it with 0; the terminal is as before."""
    with top_on_a_terminal(tmp_path) as (process, controller, _):
        os.write(controller, b"n")
        read_until(controller, "queue ▼")
        if end == "q":
            os.write(controller, b"q")
        else:
            process.terminate()
        read_until(controller, "\x1b[?1049l")
        assert process.wait() == 0


def test_a_stopped_top_gives_the_terminal_back_and_takes_it_again(tmp_path: Path) -> None:
    """After Ctrl-Z the shell has its own screen, with an echo; after fg the keys work, whatever the shell set."""
    with top_on_a_terminal(tmp_path) as (process, controller, is_as_before):
        process.send_signal(signal.SIGTSTP)
        read_until(controller, "\x1b[?1049l")
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        assert is_as_before()
        process.send_signal(signal.SIGCONT)
        read_until(controller, "in/s ▼")
        os.write(controller, b"q")
        read_until(controller, "\x1b[?1049l")
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("interval", "stdin"),
    [("1000", "terminal"), ("0.1", "/dev/null")],
    ids=["while it waits for a key", "while it draws"],
)
def test_top_ends_with_its_terminal(tmp_path: Path, interval: str, stdin: str) -> None:
    """A terminal that goes without a signal (its window or its connection was closed) leaves no process behind."""
    directory = build(tmp_path / "wal", three_queues)
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "mrecordlog_async", "top", str(directory), "--interval", interval]
    with subprocess.Popen(
        command,
        stdin=terminal if stdin == "terminal" else subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.PIPE,
        env={**os.environ, **TERMINAL},
    ) as process:
        os.close(terminal)
        try:
            read_until(controller, "in/s ▼")
            os.close(controller)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, said) == (0, b"")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("kind", "stdin", "shown"), [("dumb", "", "records"), ("xterm", "<&-", "in/s ▼")])
def test_a_poor_terminal_shows_samples_too(tmp_path: Path, kind: str, stdin: str, shown: str) -> None:
    """Lines where the cursor cannot be moved, such as in a shell inside an editor; a table where no key can come."""
    directory = build(tmp_path / "wal", three_queues)
    controller, terminal = pty.openpty()
    command = f"exec {sys.executable} -m mrecordlog_async top {directory} --interval 0.1 {stdin}"
    environment = {**os.environ, **TERMINAL, "TERM": kind}
    with subprocess.Popen(
        ["sh", "-c", command], stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)  # so that reading ends with the process
        try:
            read_until(controller, shown)
            process.send_signal(signal.SIGINT)
            read_until_end(controller)
            assert process.wait() == 130
        finally:
            process.kill()
            os.close(controller)


def read_until_end(controller: int) -> None:
    """Read from a terminal until no process has it open."""
    with suppress(OSError):
        while os.read(controller, 65_536):
            pass


def read_until(controller: int, text: str) -> None:
    """Read from a terminal until *text* appears."""
    seen = b""
    while text.encode() not in seen:
        seen += os.read(controller, 65_536)
