"""The command lines: the job that runs is the one that was typed."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from types import ModuleType

import pytest

from mrecordlog_async.cli.main import build_parser, main
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.drain import job as drain
from mrecordlog_async.spark.drain.job import job_of
from mrecordlog_async.spark.restore import load
from mrecordlog_async.spark.settings.arguments import seconds_of, size_of
from mrecordlog_async.spark.settings.drain_job import DrainJob

WHERE = ["--output", "/lake/out/", "--checkpoint", "/lake/checkpoint"]


def test_a_drain_as_it_is_typed(tmp_path: Path) -> None:
    """Flags become options of the data source; the token is read from a file, never from the command line."""
    (tmp_path / "token").write_text("secret\n")
    line = ["drain", "--server", "a=http://h1:8080", "--server", "b=http://h2:8080", *WHERE, "--every", "10s"]
    line += ["--subscribe", "q", "--max-records-per-trigger", "7", "--skip-down", "--allow-data-loss"]
    line += [
        "--partition-by",
        "server,queue",
        "--token-file",
        str(tmp_path / "token"),
        "--storage-option",
        "AWS_REGION=a=b",
    ]
    line += ["--shared-paths", "--min-partitions", "16", "--consumer", "lake", "--take-over"]
    line += ["--metrics", "127.0.0.1:9100"]
    assert job_of(build_parser().parse_args(line)) == DrainJob(
        servers="a=http://h1:8080,b=http://h2:8080",
        output="/lake/out",
        checkpoint="/lake/checkpoint",
        every_seconds=10.0,
        truncate=True,
        consumer="lake",
        take_over=True,
        metrics="127.0.0.1:9100",
        partition_by=("server", "queue"),
        shared_paths=True,
        storage_options={"AWS_REGION": "a=b"},
        options={
            "maxRecordsPerTrigger": "7",
            "minPartitions": "16",
            "subscribe": "q",
            "failOnServerDown": "false",
            "failOnDataLoss": "false",
            "token": "secret",
        },
    )


def test_a_job_of_a_program_has_the_places_that_the_command_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`~/` is the home directory, and a slash at the end means nothing."""
    monkeypatch.setenv("HOME", str(tmp_path))
    where = ("~/lake/out/", "~/lake/checkpoint")
    job = DrainJob("http://h1:8080", *where)
    assert (job.output, job.checkpoint) == (f"{tmp_path}/lake/out", f"{tmp_path}/lake/checkpoint")
    assert DrainJob("http://h1:8080", "s3://lake/out/", "/c/").output == "s3://lake/out"
    typed = ["drain", "--server", "http://h1:8080", "--output", where[0], "--checkpoint", where[1]]
    assert job_of(build_parser().parse_args(typed)) == job


def test_each_server_may_have_a_token_file(tmp_path: Path) -> None:
    """NAME=FILE is for one server; a name that no server has is refused, and no token is shown."""
    common, own = tmp_path / "common", tmp_path / "own=1"
    common.write_text("for all\n".replace(" ", "-"))
    own.write_text("for-b\n")
    line = ["drain", "--server", "a=http://h1:8080", "--server", "b=http://h2:8080", *WHERE]
    job = job_of(build_parser().parse_args([*line, "--token-file", str(common), "--token-file", f"b={own}"]))
    assert {name: text for name, text in job.options.items() if "token" in name} == {
        "token": "for-all",
        "token.b": "for-b",
    }
    assert "for-b" not in repr(job)
    for given, why in (([f"c={own}"], "no --server c="), ([str(common), str(common)], "given twice for all servers")):
        typed = [word for file in given for word in ("--token-file", file)]
        with pytest.raises(RefusedError, match=why):
            job_of(build_parser().parse_args([*line, *typed]))


def test_a_drain_stops_when_it_has_caught_up_and_truncates() -> None:
    """Without flags, a drain runs once and truncates."""
    job = job_of(build_parser().parse_args(["drain", "--server", "http://h:1", *WHERE]))
    assert (job.every_seconds, job.truncate, job.shared_paths) == (None, True, False)
    assert (
        job_of(build_parser().parse_args(["drain", "--server", "http://h:1", *WHERE, "--no-truncate"])).truncate
        is False
    )


@pytest.mark.parametrize("extra", [["--once", "--every", "1s"], ["--target-file-bytes", "much"], ["--every", "soon"]])
def test_invalid_arguments_are_refused(extra: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse exits with its own code before Spark is started."""
    with pytest.raises(SystemExit) as ended:
        main(["drain", "--server", "http://h:1", *WHERE, *extra])
    assert ended.value.code == 2
    assert "drain" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (drain, ["drain", "--server", "http://h:1", *WHERE]),
        (load, ["load-table", "http://h:1", "/lake/out"]),
    ],
    ids=["drain", "load-table"],
)
def test_what_a_job_refuses_is_wrong_usage(
    job: ModuleType, line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both jobs print the reason on standard error and exit with code 2."""

    def refuse(arguments: Namespace) -> int:
        raise RefusedError("the log would lose records")

    monkeypatch.setattr(job, "run", refuse)
    assert main(line) == 2
    assert capsys.readouterr().err == "mrecordlog: the log would lose records\n"


@pytest.mark.parametrize("text", ["nan", "inf", "0", "-1s", "s", "soon", "1e-9"])
def test_malformed_times_are_refused(text: str) -> None:
    """A malformed time is refused before Spark can misread it."""
    with pytest.raises(ArgumentTypeError, match="is not a time"):
        seconds_of(text)


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("64k", 65536), ("256m", 256 << 20), ("1GiB", 1 << 30)])
def test_sizes_have_units(text: str, size: int) -> None:
    """Sizes are read with their units; anything else is refused."""
    assert size_of(text) == size
    for wrong in ("", "m", "-1", "0.1", "0", "many"):
        with pytest.raises(ArgumentTypeError, match=r"is not a (size|whole number of bytes)"):
            size_of(wrong)


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("3", 3)])
def test_times_have_units(text: str, seconds: float) -> None:
    """Times are read with their units."""
    assert seconds_of(text) == seconds
