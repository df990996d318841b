"""The command line of a drain: what runs is what was typed."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from mrecordlog_async.cli import lake
from mrecordlog_async.cli.main import main
from mrecordlog_async.quantities import parse_seconds
from mrecordlog_async.spark.drain_call import DrainOptionError, DrainOptions
from mrecordlog_async.spark.drain_command import options_of
from mrecordlog_async.spark.options import OptionError, interval, size
from mrecordlog_async.tokens import TokenFileError
from tests.cli.running import given

WHERE = ["--output", "/lake/out/"]


def typed(*more: str) -> DrainOptions:
    """Return the options of a line."""
    return options_of(lake.given(given("drain", *WHERE, *more)))


def change(rows: object) -> object:
    """Stand for a function of the user."""
    return rows


def test_a_drain_as_it_is_typed(tmp_path: Path) -> None:
    """Every option has its flag; a token is read from a file, never from the command line."""
    (tmp_path / "token").write_text("secret\n")
    line = ["--server", "a=http://h1:8080", "--server", "b=http://h2:8080", "--every", "10s", "--name", "second"]
    line += ["--subscribe", "q, r", "--max-records", "7", "--max-bytes", "1m", "--skip-down", "--allow-data-loss"]
    line += ["--partition-by", "server,queue", "--storage-option", "AWS_REGION=a=b", "--shared-paths"]
    line += ["--consumer", "lake", "--take-over", "--metrics", "127.0.0.1:9100", "--min-batch-records", "5"]
    line += ["--max-delay", "5min", "--accept-went-back", "--forget", "0123456789", "--forget", "abcdef01"]
    line += ["--migrate-from", "/lake/checkpoint/", "--token-file", str(tmp_path / "token")]
    options = typed(*line)
    assert options == DrainOptions(
        servers="a=http://h1:8080,b=http://h2:8080",
        output="/lake/out",
        name="second",
        every_seconds=10.0,
        partition_by=("server", "queue"),
        consumer="lake",
        take_over=True,
        subscribe=("q", "r"),
        max_records=7,
        max_bytes=1 << 20,
        min_batch_records=5,
        max_delay_seconds=300.0,
        storage_options={"AWS_REGION": "a=b"},
        tokens={"": "secret"},
        shared_paths=True,
        skip_down=True,
        allow_data_loss=True,
        accept_went_back=True,
        forget=("0123456789", "abcdef01"),
        metrics="127.0.0.1:9100",
        migrate_from="/lake/checkpoint",
    )
    assert "secret" not in repr(options)
    other = typed("--server", "http://h", "--subscribe-pattern", "a.*", "--no-truncate", "--schema", "a int")
    assert (other.subscribe_pattern, other.truncate, other.schema) == ("a.*", False, "a int")
    named = typed("--server", "http://h", "--transform", f"{__name__}:change")
    assert named.transform is change
    flags = {*line, *WHERE} | {"--subscribe-pattern", "--no-truncate", "--schema", "--transform"}
    dests = {"servers": "server", "tokens": "token-file", "truncate": "no-truncate", "every_seconds": "every"}
    dests |= {"max_delay_seconds": "max-delay", "storage_options": "storage-option"}
    assert {"--" + dests.get(each.name, each.name).replace("_", "-") for each in fields(DrainOptions)} <= flags


def test_what_is_not_typed_is_the_default_of_the_call() -> None:
    """Without flags, a drain runs once, drains everything and truncates."""
    assert typed("--server", "http://h:1") == DrainOptions("http://h:1", "/lake/out")
    assert typed("--server", "http://h:1", "--once") == DrainOptions("http://h:1", "/lake/out")


def test_a_place_may_be_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slash at the end means nothing, not even in a store."""
    monkeypatch.setenv("HOME", str(tmp_path))
    line = ["drain", "--server", "http://h1:8080", "--output"]
    for written, meant in (("~/lake/out/", f"{tmp_path}/lake/out"), ("s3://lake/out/", "s3://lake/out")):
        assert options_of(lake.given(given(*line, written))).output == meant


def test_each_server_may_have_a_token_file(tmp_path: Path) -> None:
    """NAME=FILE is for one server; a name that no server has is refused, and no token is shown."""
    common, own = tmp_path / "common", tmp_path / "own=1"
    common.write_text("# rotated in November\n\n  for-all  # of the drain\nold\n")
    own.write_text("for-b\n")
    servers = ["--server", "a=http://h1:8080", "--server", "b=http://h2:8080"]
    options = typed(*servers, "--token-file", str(common), "--token-file", f"b={own}")
    assert options.tokens == {"": "for-all", "b": "for-b"} and "for-b" not in repr(options)
    (tmp_path / "empty").write_text("# nothing\n")
    for files, why in (
        ([f"c={own}"], "no --server c="),
        ([str(common), str(common)], "given twice for all servers"),
        ([str(tmp_path / "empty")], "holds no token"),
    ):
        with pytest.raises(TokenFileError, match=why):
            typed(*servers, *(word for file in files for word in ("--token-file", file)))


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--once", "--every", "1s"], "exclude each other"),
        (["--every", "soon"], "is not a time"),
        (["--max-bytes", "much"], "is not a size"),
        (["--max-records", "0"], "is not a whole number of at least 1"),
        (["--forget", "zz"], "at least its first 8 digits"),
        (["--subscribe-pattern", "("], "is not a regular expression"),
        (["--subscribe", ","], "expected queue names"),
        (["--storage-option", "=1"], "is not of the form KEY=VALUE"),
        (["--checkpoint", "/c"], "unknown option --checkpoint"),
        (["--max-records-per-trigger", "7"], "did you mean --max-records"),
    ],
)
def test_invalid_arguments_are_refused(extra: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names the option; nothing is started."""
    assert main(["drain", "--server", "http://h:1", *WHERE, *extra]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--min-batch-records", "8", "--max-records", "7"], "above --max-records"),
        (["--partition-by", "day"], "cannot partition the table by day: choose from server, queue, date"),
        (["--partition-by", "date,date"], "cannot partition"),
        (["--schema", "a int", "--transform", f"{__name__}:change"], "set one"),
        (["--take-over"], "name it with --consumer"),
        (["--no-spark", "--master", "local"], "--no-spark"),
        (["--no-spark", "--schema", "a int"], "excludes --no-spark"),
        (["--transform", "nothing"], "write MODULE:FUNCTION"),
        (["--transform", "no.such:thing"], "there is no module 'no'"),
        (["--transform", f"{__name__}:nothing"], "the module has no 'nothing'"),
        (["--transform", f"{__name__}:WHERE"], "'WHERE' is not a function"),
        (["--metrics", "h:x", "--no-spark"], "--metrics: expected HOST:PORT"),
        (["--name", "a/b", "--no-spark"], "--name 'a/b': use letters"),
        (["--token-file", "/no/such"], "/no/such"),
    ],
)
def test_options_that_cannot_be_are_wrong_usage(
    tmp_path: Path, extra: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2, before Spark is started and anything is created."""
    table = tmp_path / "table"
    assert main(["drain", "--server", "http://127.0.0.1:9", "--output", str(table), *extra]) == 2
    assert said in capsys.readouterr().err
    assert not table.exists()


def test_malformed_servers_are_wrong_usage() -> None:
    """A name that occurs twice, and what is no address."""
    for servers in (["a=http://h", "a=http://i"], ["a=ftp://h"]):
        with pytest.raises(OptionError):
            typed(*(word for each in servers for word in ("--server", each)))


@pytest.mark.parametrize("text", ["nan", "inf", "0", "-1s", "s", "soon", "1e-9"])
def test_malformed_times_are_refused(text: str) -> None:
    """A malformed time is refused where it is typed."""
    with pytest.raises(ValueError, match="is not a time"):
        interval(text)


@pytest.mark.parametrize(("text", "bytes_"), [("7", 7), ("64k", 65536), ("256m", 256 << 20), ("1GiB", 1 << 30)])
def test_sizes_have_units(text: str, bytes_: int) -> None:
    """Sizes are read with their units; anything else is refused."""
    assert size(text) == bytes_
    for wrong in ("", "m", "-1", "0.1", "0", "many"):
        with pytest.raises(ValueError, match=r"is not a (size|whole number of bytes)"):
            size(wrong)


def test_times_have_units() -> None:
    """As everywhere."""
    for text, seconds in (("10s", 10), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("3", 3)):
        assert interval(text) == seconds == parse_seconds(text)


def test_options_of_a_program_are_checked_too() -> None:
    """As the command checks them."""
    with pytest.raises(DrainOptionError, match="cannot partition"):
        DrainOptions("http://h", "t", partition_by=("day",)).check()
