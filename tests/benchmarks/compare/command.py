"""Measure two versions of the log in turn, row by row, and print their ratios."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack

from tests.benchmarks.compare import table
from tests.benchmarks.compare.contenders import PEERS
from tests.benchmarks.compare.place import TREE, Version, make_place
from tests.benchmarks.compare.process import Contestant
from tests.benchmarks.compare.suite import ROWS, Row, chosen

EVERYTHING = 10**9


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "versions",
        nargs="*",
        metavar="VERSION",
        help="a checkout's directory or a revision, with +pure its pure build; the first is the base",
    )
    parser.add_argument(
        "--peers", nargs="*", metavar="STORE", help=f"measure these stores too, without a name all: {', '.join(PEERS)}"
    )
    parser.add_argument("--only", nargs="+", metavar="ROW", help="measure these rows only (see --list)")
    parser.add_argument("--list", action="store_true", help="print the rows and exit")
    parser.add_argument("--rounds", type=int, default=40, help="rounds per row (default: 40)")
    parser.add_argument("--seconds", type=float, default=0.1, help="length of one measurement (default: 0.1)")
    parser.add_argument("--quick", action="store_true", help="40 rounds of 0.03 s: 10 to 20 s per row for two versions")
    parser.add_argument("--at-most", type=int, default=EVERYTHING, help="prepare at most this many records or queues")
    parser.add_argument("--dir", default=".", help="directory to write in; cleaned up afterwards (default: here)")
    parser.add_argument("--json", action="store_true", help="print every round as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print, row by row."""
    if arguments.list:
        sys.stdout.writelines(f"{row.name:<15}{row.what}\n" for row in ROWS)
        return 0
    rows = chosen(arguments.only)
    rounds, seconds = (40, 0.03) if arguments.quick else (arguments.rounds, arguments.seconds)
    place = tempfile.mkdtemp(prefix="mrecordlog-compare-", dir=arguments.dir)
    try:
        os.chmod(place, 0o711)  # a server that does not run as root must reach its own directory below it
        place = os.path.abspath(place)
        versions = [
            make_place(version, os.path.join(place, f"version-{number}"))
            for number, version in enumerate(arguments.versions or ["."], 1)
        ]
        peers = make_peers(_peers(arguments.peers), os.path.join(place, "peers"))
        for row in rows:
            contestants = measure(
                row, versions + (peers if row.peers else []), place, rounds, seconds, arguments.at_most
            )
            if arguments.json:
                print(_to_json(row, contestants), flush=True)
            else:
                print(*table.text(row, contestants), "", sep="\n", flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 0


def make_peers(names: Sequence[str], directory: str) -> list[Version]:
    """Create *directory*, in which the stores of these *names* run."""
    here = make_place(TREE, directory).directory
    return [Version(name, here, name) for name in names]


def measure(
    row: Row, versions: Sequence[Version], place: str, rounds: int, seconds: float, at_most: int = EVERYTHING
) -> list[Contestant]:
    """Measure *row* on all *versions* in turn; return them with their rounds.

    Raises:
        ContestantError: A version failed, or did not store what it acknowledged.
    """
    directory = os.path.join(place, row.name)
    os.mkdir(directory)
    try:
        with ExitStack() as stack:
            contestants = [
                stack.enter_context(Contestant(version, row.name, os.path.join(directory, f"log-{number}"), at_most))
                for number, version in enumerate(versions, 1)
            ]
            contestants = [contestant for contestant in contestants if _is_ready(row, contestant)]
            _say(f"{row.name}: measuring")
            for number in range(min(rounds, row.rounds_max)):
                for contestant in contestants if number % 2 == 0 else reversed(contestants):
                    contestant.round(max(seconds, row.seconds_min))
    finally:
        shutil.rmtree(directory)
    return contestants


def _peers(names: Sequence[str] | None) -> Sequence[str]:
    unknown = sorted(set(names or ()) - set(PEERS))
    if unknown:
        raise ValueError(f"unknown store {', '.join(unknown)}; stores: {', '.join(PEERS)}")
    return PEERS if names == [] else names or []


def _is_ready(row: Row, contestant: Contestant) -> bool:
    _say(f"{row.name}: preparing {contestant.version.label}")
    missing = contestant.prepare()
    if missing:
        _say(f"{row.name}: skipped {contestant.version.label}: {missing}")
    return not missing


def _to_json(row: Row, contestants: Sequence[Contestant]) -> str:
    versions = [
        {
            "version": contestant.version.label,
            "rounds": [
                {
                    "rate": one.rate,
                    "p50": one.p50,
                    "p99": one.p99,
                    "cpu_microseconds": one.cpu_microseconds,
                    "of_raw": one.of_raw,
                    "p50_over_raw": one.p50_over_raw,
                }
                for one in contestant.rounds
            ],
        }
        for contestant in contestants
    ]
    return json.dumps({"row": row.name, "what": row.what, "versions": versions}, ensure_ascii=False)


def _say(what: str) -> None:
    print(f"    {what}", file=sys.stderr, flush=True)
