"""Commands on several services: each row says which server it is of, and a position needs a single log."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.cli.commands.top import _Sources
from mrecordlog_async.cli.main import main
from mrecordlog_async.cli.shell.services import open_fleet
from mrecordlog_async.client import RecordLogClient, ServiceUnreachableError
from mrecordlog_async.client.fleet import consumer as consuming
from mrecordlog_async.service.options import ServiceOptions
from tests import warm
from tests.cli.running import Ran, mrecordlog
from tests.client.fleet.proxy import proxied
from tests.served import serving
from tests.serving import Process

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run two services; yield how the shell names both."""
    directory = tmp_path_factory.mktemp("several")
    with Process(directory / "a", ["--name", "wal-a"]) as a, Process(directory / "b", ["--name", "wal-b"]) as b:
        yield f"{a.address},{b.address}"


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in this process: a new one takes a second to start."""

    def run(*arguments: str) -> Ran:
        try:
            code = main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        return Ran(code, *capfd.readouterr())

    return run


def objects(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def store(services: str, queue: str) -> None:
    """Append a record to the queue of each service: what it holds is the number of the service."""

    async def append() -> None:
        for number, url in enumerate(services.split(",")):
            async with RecordLogClient(url) as client:
                await client.append(queue, b"%d" % number)

    asyncio.run(append())


def test_queues_of_several_are_made_listed_read_and_deleted(services: str, run: Run) -> None:
    """configure, ls, cat, consume, consumers and delete concern every server."""
    assert run("configure", services, "q", "--create").out == "wal-a: q: created\nwal-b: q: created\n"
    store(services, "q")
    table = [line.split() for line in run("ls", services).out.splitlines()]
    assert [row[:5] for row in table[1:]] == [["wal-a", "q", "0", "1", "1"], ["wal-b", "q", "0", "1", "1"]]
    assert table[0][:2] == ["server", "queue"]
    assert run("cat", services, "q").out == "0\n1\n"
    shown = objects(run("cat", services, "q", "--json").out)
    assert [(one["server"], one["position"]) for one in shown] == [("wal-a", 0), ("wal-b", 0)]
    assert sorted(run("consume", services, "q", "--consumer", "c", "--once").out.split()) == ["0", "1"]
    assert run("consume", services, "q", "--consumer", "c", "--once").out == ""
    held = run("ls", services, "--drained")
    assert (held.code, held.out.count("wal-")) == (1, 2)  # acknowledged, but this queue keeps them until a truncate
    rows = [line.split() for line in run("consumers", services).out.splitlines()]
    assert [(row[0], row[2], row[4]) for row in rows[1:]] == [("wal-a", "c", "0"), ("wal-b", "c", "0")]
    assert len(run("consumers", services, "q", "--create", "d", "--json").out.splitlines()) == 2
    assert len(run("configure", services, "q", "--seal").out.splitlines()) == 2
    assert sorted(run("consume", services, "q", "--consumer", "d").out.split()) == ["0", "1"]  # to the end of both
    assert run("delete", services, "q", "--past-consumers").out == "wal-a: q: deleted\nwal-b: q: deleted\n"
    assert run("ls", services, "--drained").code == 0


def test_consume_once_ends_where_records_are_removed_meanwhile(services: str, run: Run) -> None:
    """On every server; what was read ahead is handed out."""
    run("configure", services, "gone", "--create")
    for _ in range(2):
        store(services, "gone")
    truncates = [
        f"{sys.executable} -m mrecordlog_async truncate {url} gone 1 --past-consumers > {os.devnull}"
        for url in services.split(",")
    ]
    once = ("consume", services, "gone", "--consumer", "c", "--once", "--batch", "1")
    found = run(*once, "--exec", "; ".join(["cat", *truncates]))
    assert (found.code, set(found.out.split())) == (0, {"0", "1"})


def test_consume_once_says_that_a_server_was_not_read(services: str, run: Run) -> None:
    """The records of the others are handed out, and the exit code is that of a service that does not respond."""
    run("configure", services, "some", "--create")
    store(services, "some")
    found = run("consume", f"{services},http://127.0.0.1:1", "some", "--consumer", "c", "--once")
    assert (found.code, sorted(found.out.split()), "http://127.0.0.1:1" in found.err) == (5, ["0", "1"], True)


def test_consume_once_does_not_wait_for_ever_for_a_server_that_went_away(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of the others are handed out, and what was not read is known by the exit code."""
    monkeypatch.setattr(consuming, "AWAY_SECONDS", 0)
    with Process(tmp_path / "a", ["--name", "wal-a"]) as a, Process(tmp_path / "b", ["--name", "wal-b"]) as b:
        run("configure", f"{a.address},{b.address}", "q", "--create")
        for url, records in ((a.address, 2), (b.address, 9)):
            for _ in range(records):
                store(url, "q")
        assert b.process is not None
        killing = f"cat; kill -9 {b.process.pid} 2> {os.devnull} || true"
        once = ("consume", f"{a.address},{b.address}", "q", "--consumer", "c", "--once", "--batch", "1")
        found = run(*once, "--exec", killing)
        assert (found.code, "wal-b: " in found.err) == (5, True)
        assert run("consumers", a.address, "q", "--json").out.count('"position": 2') == 1


def test_a_refusal_of_one_server_is_named_and_the_others_do_the_work(services: str, run: Run) -> None:
    """The same command without the obstacle does the rest: what is done already is not an error."""
    run("configure", services, "behind", "--create")
    store(services, "behind")
    last = services.partition(",")[2]
    run("consumers", last, "behind", "--create", "slow")
    refused = run("delete", services, "behind")
    assert (refused.code, refused.out) == (1, "wal-a: behind: deleted\n")
    assert refused.err.startswith("mrecordlog: wal-b: queue 'behind': consumer 'slow' is at 0")
    again = run("delete", services, "behind")
    assert (again.code, again.out, again.err) == (1, "", refused.err)
    assert run("delete", services, "behind", "--past-consumers")[:2] == (0, "wal-b: behind: deleted\n")
    nobody = run("delete", services, "behind")
    assert (nobody.code, "'behind' does not exist" in nobody.err) == (1, True)


@pytest.mark.parametrize("queue", ["half", "half*"])
def test_a_consumer_is_created_and_deleted_where_that_is_not_done_yet(queue: str, services: str, run: Run) -> None:
    """A command that reached one server only is repeated for all. A consumer that nobody has is a misspelt one."""
    run("configure", services, "half", "--create")
    first = services.partition(",")[0]
    run("consumers", first, queue, "--create", "lake")
    created = run("consumers", services, queue, "--create", "lake")
    expected = f"wal-a: {queue}: consumer lake exists\nwal-b: {queue}: consumer lake created\n"
    assert (created.code, created.out) == (0, expected)
    run("consumers", first, queue, "--delete", "lake")
    deleted = run("consumers", services, queue, "--delete", "lake")
    assert (deleted.code, deleted.out) == (0, f"wal-b: {queue}: consumer lake deleted\n")
    nobody = run("consumers", services, queue, "--delete", "lake")
    assert (nobody.code, "has no consumer 'lake'" in nobody.err) == (1, True)


def test_a_queue_is_sealed_where_it_is_not_sealed_yet(services: str, run: Run) -> None:
    """The servers where it is already say so in the same words, with the end of the queue there."""
    run("configure", services, "half-sealed", "--create")
    run("configure", services.partition(",")[0], "half-sealed", "--seal")
    sealed = run("configure", services, "half-sealed", "--seal")
    text = "half-sealed: sealed, ends before position 0\n"
    assert (sealed.code, sealed.out) == (0, f"wal-a: {text}wal-b: {text}")


def test_a_followed_server_that_fails_is_named_and_the_others_are_followed(
    services: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the end of their queues; the exit code says that not every server was read."""
    run("configure", services, "followed", "--create")
    store(services, "followed")
    run("configure", services, "followed", "--seal")
    timed_runs = RecordLogClient.timed_runs
    failed: list[RecordLogClient] = []

    def fail_once(client: RecordLogClient, queue: str, *arguments: Any, **bounds: Any) -> AsyncIterator[Any]:
        if not failed:
            failed.append(client)
            raise ServiceUnreachableError(client.url, 2.0, "connection refused")
        return timed_runs(client, queue, *arguments, **bounds)

    monkeypatch.setattr(RecordLogClient, "timed_runs", fail_once)
    done = run("cat", services, "followed", "--follow")
    assert (done.code, done.out) == (5, "1\n")
    assert done.err.startswith("mrecordlog: wal-a: http://127.0.0.1:")
    assert "connection refused" in done.err


def test_a_follower_of_several_ends_when_nobody_reads_its_output(services: str, run: Run) -> None:
    """As `| head` leaves it: without a message, like the follower of one service."""
    run("configure", services, "piped", "--create")
    store(services, "piped")
    command = ["cat", services, "piped", "--follow"]
    with warm.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        store(services, "piped")
        said = process.stderr.read()
        assert (process.wait(), said) == (0, "")


def test_records_are_appended_to_one_of_several(services: str) -> None:
    """Lines stay together, in order; a queue that is nowhere is a misspelt one unless it is to be created."""
    assert "does not exist" in mrecordlog("append", services, "r", stdin="x").err
    appended = mrecordlog("append", services, "r", "--create", "--lines", "--json", "--key", "k", stdin="1\n2\n3\n")
    done = json.loads(appended.out)
    assert (done["records"], done["position"], done["server"] in ("wal-a", "wal-b")) == (3, 2, True)
    assert mrecordlog("cat", services, "r").out == "1\n2\n3\n"


def test_top_shows_the_server_of_each_queue(services: str, run: Run) -> None:
    """By name, as the services call themselves; a DNS name stands for all of its addresses."""
    sample = ("--once", "--json", "--interval", "10ms")
    assert [one["source"] for one in objects(run("top", services, *sample).out)] == ["wal-a", "wal-b"]
    by_name = "dns+" + services.partition(",")[0]
    assert [one["source"] for one in objects(run("top", by_name, *sample).out)] == ["wal-a"]


def test_top_shows_a_server_that_was_never_reached(services: str, run: Run) -> None:
    """By its address, which is all that is known of it, with the reason."""
    sample = ("--once", "--json", "--interval", "10ms")
    down, *up = objects(run("top", f"{services},http://127.0.0.1:1", *sample).out)[::-1]
    assert [one["source"] for one in up] == ["wal-b", "wal-a"]
    assert (down["source"], down["state"], down["error"]) == ("http://127.0.0.1:1", "unreachable", "connection refused")


async def test_top_shows_a_server_under_its_name_once_it_responds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of its address ends then."""
    monkeypatch.setattr("mrecordlog_async.cli.shell.services.RETRY_SECONDS", 0.0)
    names = [ServiceOptions(name=f"wal-{name}") for name in "ab"]
    async with (
        serving(tmp_path / "a", names[0]) as a,
        serving(tmp_path / "b", names[1]) as b,
        proxied(b.port) as to_b,
        AsyncExitStack() as stack,
    ):
        to_b.cut()
        arguments = argparse.Namespace(log=f"{a.url},{to_b.url}", more=(), token_file=None)
        sources = _Sources(arguments, stack)
        await sources.add(arguments.log)
        await sources.sample(first=True)
        assert [(one.source, one.lost_since is None) for one in sources.histories] == [
            ("wal-a", True),
            (to_b.url, False),
        ]
        to_b.targets = [b.port]
        await sources.fleets[0].look()
        await sources.sample()
        assert [(one.source, one.lost_since is None) for one in sources.histories] == [
            ("wal-a", True),
            ("wal-b", True),
        ]


@pytest.mark.parametrize(
    "command",
    [
        ("truncate", "q", "1"),
        ("append", "q", "--position", "1"),
        ("cat", "q", "--start", "1"),
        ("consumers", "q", "--seek", "c", "1"),
        ("dump",),
    ],
    ids=lambda command: command[0],
)
def test_a_position_is_one_of_a_single_log(command: tuple[str, ...], run: Run) -> None:
    """The message says so, before anything is sent."""
    refused = run(command[0], "http://h:1,http://i:1", *command[1:])
    assert (refused.code, "name one of them" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("http://", "'http://' is not the URL of a service"),
        ("unix:", "unix: names no socket"),
        ("dns+http://wal", "has no port: write dns+http://wal:8080"),
        ("a=http://h:1,a=http://h:2", "two servers are called 'a'"),
    ],
)
@pytest.mark.parametrize("command", ["ls", "top", "append"])
def test_a_url_that_cannot_be_one_is_wrong_usage(command: str, log: str, why: str, run: Run) -> None:
    """Whether it names one service or several: no attempt would make it right."""
    refused = run(command, log, *(["q"] if command == "append" else []))
    assert (refused.code, refused.out, why in refused.err) == (2, "", True)


@pytest.mark.parametrize(
    "log", ["http://user:secret@127.0.0.1:1", "http://u:secret@h:1,http://user:secret@127.0.0.1:1"]
)
@pytest.mark.parametrize("command", ["ls", "top", "dump", "truncate"])
def test_a_password_is_not_printed(command: str, log: str, run: Run) -> None:
    """Terminals, scripts and journals keep what a command prints."""
    failed = run(command, log, *(["q", "1"] if command == "truncate" else []))
    assert failed.code in (2, 5)
    assert "127.0.0.1:1" in failed.err
    assert "secret" not in failed.out + failed.err
    unknown = run(command, log.replace("http", "htp"))
    assert (unknown.code, "secret" in unknown.err, "is not a URL of a service" in unknown.err) == (2, False, True)


def test_a_server_that_does_not_respond_is_named(services: str, run: Run) -> None:
    """The others are shown, and the exit code says that not all were; without any, nothing is."""
    some = run("ls", f"{services},http://127.0.0.1:1")
    assert (some.code, "http://127.0.0.1:1" in some.err, some.out.startswith("server")) == (5, True, True)
    none = run("ls", "dns+http://127.0.0.1:1")
    assert (none.code, "no service responds at dns+http://127.0.0.1:1" in none.err) == (5, True)
    assert "--key chooses among several" in run("append", "http://h:1", "q", "--key", "k").err


async def test_each_service_may_have_a_token_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NAME=FILE is for one service, FILE for the others; a wrong name is refused, a wrong token named."""
    tokens = {name: f"0123456789abcdef-of-{name}" for name in "ab"}
    files = {name: tmp_path / f"token-{name}" for name in "ab"}
    for name, token in tokens.items():
        files[name].write_text(token)
    only = [ServiceOptions(tokens=frozenset([token.encode()]), name=f"wal-{name}") for name, token in tokens.items()]
    async with serving(tmp_path / "a", only[0]) as a, serving(tmp_path / "b", only[1]) as b:
        both = f"a={a.url},b={b.url}"

        async def run(*arguments: str) -> Ran:
            return Ran(await asyncio.to_thread(main, arguments), *capsys.readouterr())

        given = ("--token-file", str(files["a"]), "--token-file", f"b={files['b']}")
        assert (await run("configure", both, "q", "--create", *given)).code == 0
        await a.log.append("q", b"")
        top = await run("top", f"a={a.url}", f"b={b.url}", "--once", "--json", "--interval", "10ms", *given)
        assert [one["source"] for one in objects(top.out)] == ["a", "b"]
        wrong = await run("ls", both, "--token-file", str(files["a"]))
        assert (wrong.code, f"{b.url}: " in wrong.err, "--token-file NAME=FILE" in wrong.err) == (5, True, True)
        nobody = await run("ls", both, "--token-file", f"c={files['a']}")
        assert (nobody.code, "LOG calls no service c" in nobody.err) == (2, True)
        twice = await run("ls", both, *given, *given[2:])
        assert (twice.code, "given twice for b" in twice.err) == (2, True)


async def test_a_server_that_is_starting_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a single one would be: `configure` and `ls` do not pass over a server that opens its log at that moment."""
    monkeypatch.setattr("mrecordlog_async.cli.shell.services.RETRY_SECONDS", 60.0)
    async with serving(tmp_path / "a") as ready, serving(tmp_path / "b", recovered=False) as starting:
        arguments = argparse.Namespace(log=f"{ready.url},{starting.url}", token_file=None)
        opening = asyncio.create_task(_servers(arguments))
        while not starting.service.requests:
            await asyncio.sleep(0.001)
        await starting.service.open(tmp_path / "b")
        assert await opening == sorted([ready.url, starting.url])


async def _servers(arguments: argparse.Namespace) -> list[str]:
    async with open_fleet(arguments) as fleet:
        return sorted(one.url for one in fleet.servers())
