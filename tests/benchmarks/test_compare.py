"""Comparing versions: every row once with next to nothing, the ratios, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.compare.command import make_peers, measure
from tests.benchmarks.compare.figures import Figures
from tests.benchmarks.compare.place import TREE, UnknownVersionError, Version, make_place
from tests.benchmarks.compare.process import Contestant, ContestantError
from tests.benchmarks.compare.raw import FILE_BYTES, RawFile
from tests.benchmarks.compare.suite import ROWS, Row, chosen
from tests.benchmarks.compare.table import ratios
from tests.benchmarks.targets import confidence_range

AT_MOST = 300


@pytest.fixture(scope="module")
def this_tree(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return make_place(TREE, str(tmp_path_factory.mktemp("places") / "this"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_yields_figures_and_leaves_nothing(row: Row, this_tree: Version, tmp_path: Path) -> None:
    """Each row measures, reads back what it stored, and removes its files."""
    (contestant,) = measure(row, [this_tree], str(tmp_path), rounds=1, seconds=0.01, at_most=AT_MOST)
    (found,) = contestant.rounds
    assert found.records > 0
    assert found.rate > 0
    assert os.listdir(tmp_path) == []


def test_two_versions_are_measured_in_turn(this_tree: Version, tmp_path: Path) -> None:
    """Both have the same number of rounds, each with the raw disk."""
    found = measure(chosen(["one-caller"])[0], [this_tree, this_tree], str(tmp_path), rounds=2, seconds=0.01)
    assert [len(each.rounds) for each in found] == [2, 2]
    assert all(one.of_raw and one.p50_over_raw for each in found for one in each.rounds)


def test_contestant_imports_the_log_of_its_version(this_tree: Version, tmp_path: Path) -> None:
    """A version whose log does not work fails, and no files are left."""
    broken = tmp_path / "broken"
    (broken / "mrecordlog_async").mkdir(parents=True)
    (broken / "mrecordlog_async" / "__init__.py").write_text("raise ImportError('a broken version')")
    version = make_place(str(broken), str(tmp_path / "place"))
    rows = tmp_path / "rows"
    rows.mkdir()
    with pytest.raises(ContestantError, match=r"broken .* failed on row range"):
        measure(chosen(["range"])[0], [version], str(rows), rounds=1, seconds=0.01, at_most=AT_MOST)
    assert os.listdir(rows) == []


def test_version_may_be_a_revision(tmp_path: Path) -> None:
    """Its package is extracted, and named as what it is, not compiled; `bench` and `tests` are those of this tree."""
    if not os.path.exists(os.path.join(TREE, ".git")):
        pytest.skip("this tree is not a git checkout")
    version = make_place("HEAD", str(tmp_path / "place"))
    package = Path(version.directory, "mrecordlog_async")
    assert (version.label, version.is_pure) == ("HEAD, pure", True)
    assert make_place("HEAD+pure", str(tmp_path / "pure")).label == "HEAD, pure"
    assert (package / "log.py").resolve().is_relative_to(tmp_path)
    assert (package / "bench").resolve() == Path(TREE, "mrecordlog_async", "bench").resolve()


def test_a_version_may_be_its_pure_build(this_tree: Version, tmp_path: Path) -> None:
    """The same files, without what is compiled in them; the table names it."""
    version = make_place(TREE + "+pure", str(tmp_path / "place"))
    assert version.is_pure and version.label == f"{this_tree.label}, pure"
    asked = [sys.executable, "-c", "from mrecordlog_async.compiled import BUILD; print(BUILD)"]
    build = subprocess.run(asked, cwd=version.directory, env=version.environment(), capture_output=True, text=True)
    assert build.stdout == "pure\n"


def test_unknown_version_is_named(tmp_path: Path) -> None:
    """Neither a checkout nor a revision."""
    with pytest.raises(UnknownVersionError, match="no-such-version"):
        make_place("no-such-version", str(tmp_path / "place"))


def test_unknown_row_is_named() -> None:
    """The message lists the rows that exist."""
    with pytest.raises(ValueError, match="unknown row rnage; rows: one-caller"):
        chosen(["rnage"])


def test_server_of_a_contestant_ends_with_it(tmp_path: Path) -> None:
    """An error in the comparing process leaves no server running."""
    row, place = chosen(["one-caller"])[0], make_peers(["NATS"], str(tmp_path / "place"))
    with pytest.raises(ZeroDivisionError), Contestant(place[0], row.name, str(tmp_path / "log"), AT_MOST) as contestant:
        missing = contestant.prepare()
        port = _port_of_nats(tmp_path / "log" / "log" / "config") if not missing else 0
        _ = 1 / 0
    if missing:
        pytest.skip(missing)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize("words", [["--only", "rnage"], ["--peers", "Orcale"], ["no-such-version"]])
def test_argument_that_names_nothing_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with code 2 and the name, without a traceback, and leaves no files."""
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--dir", str(tmp_path), *words])
    assert ended.value.code == 2
    assert words[-1] in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_ratios_are_taken_round_by_round() -> None:
    """A slow minute slows both versions of a round, so it cancels out."""
    slow, fast = _round(seconds=2.0), _round(seconds=1.0)
    assert ratios([fast, slow], [slow, slow], lambda one: one.rate) == [2.0, 1.0]
    assert ratios([fast], [slow], lambda one: one.p50) == []


def test_confidence_range_leaves_out_rounds_that_a_neighbor_disturbed() -> None:
    """Two rounds of 20 were ten times slower: the range of the median does not reach them."""
    rounds = [1.0 + number / 100 for number in range(18)] + [0.1, 10.0]
    assert confidence_range(rounds) == (1.04, 1.13)
    assert confidence_range([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_figures_survive_the_way_between_processes() -> None:
    """The line that a contestant prints is what is read."""
    figures = Figures(records=3, seconds=0.5, cpu_seconds=0.25, latencies=[0.1, 0.3, 0.2], commits=2)
    assert Figures.from_json(figures.to_json()) == figures
    assert (figures.rate, figures.p50, figures.p99) == (6.0, 0.2, 0.3)


def test_command_prints_rounds_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script can read every round of every version."""
    options = ["--only", "create", "--rounds", "2", "--at-most", "20", "--dir", str(tmp_path), "--json"]
    assert main(["compare", TREE, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["row"] == "create"
    assert [len(version["rounds"]) for version in found["versions"]] == [2]


def test_command_prints_a_table_and_the_list_of_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table has one line per version and one line of ratios."""
    options = ["--only", "create", "--rounds", "1", "--at-most", "20", "--dir", str(tmp_path)]
    assert main(["compare", TREE, TREE, *options]) == 0
    assert capsys.readouterr().out.count(f"\n{TREE} (") == 3
    assert main(["compare", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(ROWS)


def test_raw_file_repeats_batches_and_goes_round(tmp_path: Path) -> None:
    """Every write and sync has its latency; the file keeps its size when it is opened again."""
    first, second = RawFile(str(tmp_path / "raw")), RawFile(str(tmp_path / "raw"))
    assert [len(first.repeat(FILE_BYTES // 2 + 1, 0.0)) for _ in range(3)] == [1, 1, 1]
    assert all(second.repeat(100, 0.001))
    assert (tmp_path / "raw").stat().st_size == FILE_BYTES


def _port_of_nats(config: Path) -> int:
    found = re.search(r"127.0.0.1:(\d+)", config.read_text())
    assert found is not None
    return int(found[1])


def _round(seconds: float) -> Figures:
    return Figures(records=10, seconds=seconds, cpu_seconds=0.1)
