"""consume, consumers and configure: on a running service, and on the files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mrecordlog_async import MultiRecordLog
from tests.cli.carried import OWNER
from tests.cli.running import build
from tests.cli.test_serve import run
from tests.serving import Process


def test_records_are_handed_out_once_they_were_not_acknowledged(target: str) -> None:
    """Each call continues where the last one stopped; another consumer has its own position."""
    run("append", target, "q", "--lines", "--create", stdin=b"a\nb\n")
    consume = ("consume", target, "q", "--consumer", "billing", "--once")
    assert run(*consume).stdout == b"a\nb\n"
    run("append", target, "q", stdin=b"c")
    assert run(*consume).stdout == b"c\n"
    assert run(*consume).stdout == b""
    assert run("consume", target, "q", "--consumer", "audit", "--once").stdout == b"a\nb\nc\n"


def test_a_batch_is_acknowledged_if_the_command_took_it(target: str, tmp_path: Path) -> None:
    """A command that fails ends the call, and its batch comes again; one that succeeds moves the consumer."""
    run("append", target, "q", "--lines", "--create", stdin=b"a\n" * 1_000 + b"c\n")
    consume = ("consume", target, "q", "--consumer", "billing", "--once")
    failed = run(*consume, "--exec", "cat > /dev/null; exit 3")
    assert (failed.returncode, b"exited with 3" in failed.stderr) == (1, True)
    taken = tmp_path / "taken"
    assert run(*consume, "--exec", f"cat >> {taken}; echo - >> {taken}").returncode == 0
    assert taken.read_text() == "a\n" * 1_000 + "-\nc\n-\n"


def test_once_ends_if_the_rest_is_removed_meanwhile(tmp_path: Path) -> None:
    """By an age limit, or as here by a truncate: it does not wait for records that did not exist at its start."""
    with Process(tmp_path / "wal") as process:
        run("append", process.address, "q", "--lines", "--create", stdin=b"a\n" * 2_500)
        truncate = f"{sys.executable} -m mrecordlog_async truncate {process.address} q 2499 --past-consumers"
        once = run("consume", process.address, "q", "--consumer", "c", "--once", "--exec", f"cat; {truncate}")
    assert (once.returncode, once.stdout) == (0, b"a\n" * 1_000 + b"q: 2,500 records removed\n")


def test_consumers_are_created_listed_moved_and_deleted(target: str) -> None:
    """An operator sees where each consumer stands, and can move it."""
    run("append", target, "q", "--lines", "--create", stdin=b"a\nbb\n")
    assert run("consumers", target, "q", "--create", "billing", "--start", "1").stdout == (
        b"q: consumer billing created\n"
    )
    (listed,) = map(json.loads, run("consumers", target, "--json").stdout.splitlines())
    assert (listed["queue"], listed["consumer"], listed["position"]) == ("q", "billing", 1)
    assert run("consumers", target, "q", "--seek", "billing", "0").stdout == b"q: consumer billing is at 0\n"
    assert run("consumers", target, "q").stdout.splitlines()[1].split()[:3] == [b"q", b"billing", b"0"]
    assert run("consumers", target, "q", "--seek", "billing", "2020-01-01").stdout.endswith(b"is at 0\n")
    mistaken = run("consumers", target, "q", "--seek", "billing", "later")
    assert (mistaken.returncode, b"neither a position nor a time" in mistaken.stderr) == (2, True)
    for more in ([], ["--delete", "billing"], ["--seek", "billing", "0"]):
        unused = run("consumers", target, "q", "--start", "1", *more)
        assert (unused.returncode, b"--start is where --create begins" in unused.stderr) == (2, True)
    for command in (["truncate", target, "q", "1"], ["delete", target, "q"]):
        refused = run(*command)
        assert (refused.returncode, b"billing" in refused.stderr) == (1, True)
    assert run("truncate", target, "q", "1", "--past-consumers").stdout == b"q: 2 records removed\n"
    assert run("consumers", target, "q", "--delete", "billing").returncode == 0
    assert run("consumers", target, "--json").stdout == b""


def test_the_owner_of_a_consumer_is_listed(tmp_path: Path) -> None:
    """Even from the files: without it nobody else may attach, and a dash would say that there is none."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("q")
        await log.create_consumer("q", "free")
        async with log.consumer("q", "taken", owner=OWNER):
            pass

    listed = run("consumers", str(build(tmp_path / "wal", fill)), "--json").stdout.splitlines()
    assert [(one["consumer"], one["owner"]) for one in map(json.loads, listed)] == [("free", None), ("taken", OWNER)]
    assert OWNER.encode() in run("consumers", str(tmp_path / "wal"), "q").stdout


def test_a_pattern_concerns_all_queues(target: str) -> None:
    """With * every queue gets the consumer, and so does one that is created later; repeating it does what is left."""
    run("configure", target, "a", "--create")
    run("consumers", target, "*", "--create", "lake")
    run("consumers", target, "a", "--delete", "lake")
    again = run("consumers", target, "*", "--create", "lake")
    assert (again.returncode, again.stdout) == (0, b"*: consumer lake exists\n")
    run("configure", target, "b", "--create")
    listed = [json.loads(line) for line in run("consumers", target, "--json").stdout.splitlines()]
    assert [(one["queue"], one["consumer"]) for one in listed] == [("a", "lake"), ("b", "lake")]


def test_options_limit_a_queue_and_a_seal_ends_it(target: str) -> None:
    """What is set holds for appends; contradictions are usage errors."""
    small = run("configure", target, "q", "--create", "--max-records", "1")
    assert small.stdout == b"q: created\n"
    run("append", target, "q", stdin=b"a")
    if not target.startswith("http"):  # there, a client waits for space
        full = run("append", target, "q", stdin=b"b")
        assert (full.returncode, b"'q' is full" in full.stderr) == (1, True)
    assert run("configure", target, "q").stdout == b"q: configured\n"
    assert run("append", target, "q", stdin=b"b").returncode == 0
    assert run("configure", target, "q", "--seal").stdout == b"q: sealed, ends before position 2\n"
    assert b"is sealed" in run("append", target, "q", stdin=b"c").stderr
    assert run("consume", target, "q", "--consumer", "c").stdout == b"a\nb\n"  # ends by itself
    both = run("configure", target, "q", "--keep", "until_acknowledged", "--max-age", "1h")
    assert (both.returncode, b"cannot be combined with" in both.stderr) == (2, True)
    assert run("configure", target, "q", "--seal", "--max-age", "1h").returncode == 2


def test_changing_a_consumer_needs_a_queue(tmp_path: Path) -> None:
    """A consumer belongs to a queue, and has a name; without one the call is a usage error."""
    missing = run("consumers", str(tmp_path), "--create", "billing")
    assert (missing.returncode, b"name the queue" in missing.stderr) == (2, True)
    nameless = run("consumers", str(tmp_path), "orders", "--create", "")
    assert (nameless.returncode, b"must not be empty" in nameless.stderr) == (2, True)
    nowhere = run("consumers", str(tmp_path), "orders", "--seek", "billing", "")
    assert (nowhere.returncode, b"--seek: '' is neither a position nor a time" in nowhere.stderr) == (2, True)
