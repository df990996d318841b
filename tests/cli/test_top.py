"""top shows rates from two samples: as a table, as lines, or as JSON."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

from rich.console import Console

from mrecordlog_async.cli.top_view import History, Sample, Service, plain, render, spark
from mrecordlog_async.model import QueueSummary
from tests.cli.running import build, mrecordlog, three_queues
from tests.serving import Process

SERVICE = Service("open", (50, 100), (95, 100), (0, 100), 3, 0.0004, 0.0064)


def queue(name: str, first: int, following: int, queue_id: int = 1) -> QueueSummary:
    return QueueSummary(name, queue_id, first, following, following - first, 10 * (following - first), 0)


def two_samples(*, service: Service | None = SERVICE) -> History:
    history = History()
    history.add(Sample("here", 10.0, [queue("a", 0, 10), queue("[red]b", 0, 5, 2)], service))
    history.add(Sample("here", 12.0, [queue("a", 4, 30), queue("[red]b", 0, 5, 2)], service))
    return history


def test_rates_are_positions_a_second() -> None:
    """Rates count what was appended and truncated between two samples; the busiest queue is first."""
    facts = two_samples().facts()
    assert [(one["queue"], one["in_per_second"], one["out_per_second"]) for one in facts["queues"]] == [
        ("a", 10.0, 2.0),
        ("[red]b", 0.0, 0.0),
    ]


def test_a_queue_recreated_under_its_name_begins_at_zero() -> None:
    """A recreated queue has a new id: no rate mixes two queues."""
    history = two_samples()
    history.add(Sample("here", 13.0, [queue("a", 0, 1_000, queue_id=9)], SERVICE))
    (line,) = history.lines()
    assert (line.in_rate, list(line.past)) == (0.0, [0.0])


def test_the_picture_shows_names_as_they_are() -> None:
    """No queue name is interpreted as colour markup; bars and times are shown."""
    console = Console(width=140, file=StringIO())
    console.print(render(two_samples()))
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "[red]b" in shown
    assert "memory  ████████████░░░░░░░░░░░░ 50 B of 100 B" in shown
    assert "here  open  3 segments  commit p50 400 µs, p99 6.4 ms" in shown


def test_lines_without_a_terminal_are_aligned() -> None:
    """Plain text, a header and a line for each queue."""
    lines = list(plain(two_samples(service=None)))
    assert lines[0] == "here\n"
    assert lines[1].split() == ["queue", "first", "next", "records", "bytes", "in/s", "out/s", "keeps", "from"]
    assert lines[2].split()[:4] == ["a", "4", "30", "26"]


def test_sparks_grow_with_their_values() -> None:
    """The highest value fills its cell; zero is the lowest bar."""
    assert spark([]) == ""
    assert spark([0.0, 50.0, 100.0]) == "▁▅█"
    assert len(spark([1.0] * 60)) == 30


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
