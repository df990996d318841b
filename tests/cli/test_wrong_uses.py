"""What somebody types wrong is answered with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrecordlog_async.cli.main import main
from tests.cli.running import build, three_queues

AT_THE_LINE = [
    ("verfy ./wal", "mrecordlog: unknown command 'verfy'; did you mean verify?"),
    ("nosuch", "mrecordlog: unknown command 'nosuch': serve, append, cat"),
    ("cat orders", "mrecordlog cat: missing QUEUE"),
    ("ls", "mrecordlog ls: missing LOG"),
    ("top", "mrecordlog top: missing LOG"),
    ("append", "mrecordlog append: missing LOG"),
    ("truncate ./wal q", "mrecordlog truncate: missing POSITION"),
    ("verify", "mrecordlog verify: missing DIR"),
    ("snapshot ./wal", "mrecordlog snapshot: missing TARGET"),
    ("consume ./wal q", "mrecordlog consume: missing --consumer"),
    ("drain --server http://h:1", "mrecordlog drain: missing --output"),
    ("completion", "mrecordlog completion: missing SHELL"),
    ("ls localhost:8080", "'localhost:8080' is not a URL of a service: write http://localhost:8080"),
    ("ls http:/localhost:8080", "'http:/localhost:8080' is not a URL of a service: write http://localhost:8080"),
    ("ls https:localhost", "'https:localhost' is not a URL of a service: write https://localhost"),
    ("ls ftp://h/x", "'ftp://h/x' is not a URL of a service: write http://h/x"),
    ("verify http:/localhost:8080", "'http:/localhost:8080' is a URL, and this command needs the files"),
    ("verify http://h:1", "'http://h:1' is a URL, and this command needs the files: name the directory"),
    ("snapshot ./wal s3://b/x", "'s3://b/x' is a URL, and this command needs the files: name the directory"),
    ("repair ./wal --to s3://b/x", "'s3://b/x' is a URL, and this command needs the files"),
    ("serve http://h:1", "'http://h:1' is a URL, and this command needs the files: name the directory"),
    ("append ./wal orders hello", "append: unexpected 'hello': the record is read from standard input"),
    ("cat ./wal q extra", "cat: unexpected 'extra': the command takes no argument after LOG QUEUE"),
    ("ls ./wal extra --json", "ls: unexpected 'extra': the command takes no argument after LOG"),
    ("repair ./wal --aply", "unknown option --aply; did you mean --apply?"),
    ("serve ./wal --memroy-bytes=1", "unknown option --memroy-bytes; did you mean --memory-bytes?"),
    ("cat ./wal q --since 1h", "cat: unknown option --since"),
    ("serve ./wal --log-format json", "unknown option --log-format: set MRECORDLOG_LOG_FORMAT, or log_format in the"),
    ("serve ./wal --no-recycle", "unknown option --no-recycle: set MRECORDLOG_RECYCLE, or recycle in the file"),
    ("serve ./wal --verify-all=true", "--verify-all is a switch and takes no value"),
    ("serve ./wal --verify-all true", "serve: unexpected 'true': the command takes no argument after DIR"),
    ("serve ./wal --port http", "--port: 'http' is not a whole number of at least 0"),
    ("serve ./wal --port 70000", "--port: 70000 is not a port: the highest one is 65535"),
    ("serve ./wal --persist sometimes", "--persist: 'sometimes' must be always, interval:TIME or never"),
    ("serve ./wal --memory-bytes much", "--memory-bytes: 'much' is not a size such as 512MiB or 4G"),
    ("serve ./wal --beyond-memory tape", "--beyond-memory: 'tape' is not one of 'disk', 'refuse'"),
    ("serve ./wal --config", "serve: Option '--config' requires an argument"),
    ("top ./wal --interval soon", "--interval: 'soon' is not a time such as 10s, 500ms or 2m"),
    ("top ./wal --sort size", "--sort: 'size' is not one of"),
    ("truncate ./wal q last", "POSITION: 'last' is not a whole number of at least 0"),
    ("append ./wal q --position -1", "--position: '-1' is not a whole number of at least 0"),
    ("cat ./wal q --start yesterday", "--start: 'yesterday' is neither a position nor a time such as 10min (ago)"),
    ("cat ./wal q --start 2999-01-01", "--start: time 2999-01-01 00:00:00+00:00 is in the future: it is"),
    ("configure ./wal q --keep forever", "--keep: 'forever' is not one of 'until_truncated', 'until_acknowledged'"),
    ("configure ./wal q --max-age week", "--max-age: 'week' is not a time such as"),
    ("consumers ./wal q --seek billing", "consumers: Option '--seek' requires 2 arguments"),
    ("completion tcsh", "SHELL: 'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ("lake optimize ./t", "ACTION: 'optimize' is not 'show'"),
    ("drain --server http://h:1 --output o --every soon", "--every: 'soon' is not a time"),
    ("drain --server http://h:1 --output o --forget zz", "at least its first 8 digits"),
]
"""What the line itself shows to be wrong: the first sentence; the usage and the way to the help follow."""

WHEN_IT_RUNS = [
    ("ls ./wal --token-file t", "--token-file is for a service, and ./wal is a directory: name the URL, or leave it"),
    ("top ./wal ./other --token-file t", "--token-file is for a service, and ./wal is a directory"),
    ("ls http://a:1,http://b:2", "names several services: name one of them"),
    ("cat ./wal audit --follow --limit 1", "--follow cannot be combined with --stop or --limit"),
    ("append ./wal audit --lines --position 1", "--position is for one record and cannot be combined with --lines"),
    ("configure ./wal audit --seal --max-age 7d", "--seal cannot be combined with other options: set them first"),
    ("configure ./wal audit --when-full drop_oldest --max-age 0s", "max_age must be"),
    ("consumers ./wal audit --create a --delete b", "--create, --delete and --seek exclude each other: give one"),
    ("consumers ./wal --create a", "name the queue, or '*' for all of them"),
    ("consumers ./wal audit --create a --json", "--json is for the list of consumers: leave it out"),
    ("consumers ./wal audit --start 1", "--start is where --create begins: add --create NAME"),
    ("consumers ./wal audit --seek billing never", "--seek: 'never' is neither a position nor a time"),
    ("truncate ./wal audit 99", "position 99 has not been assigned yet; the next position is 1"),
    ("snapshot ./wal ./wal", "the directory is not empty; name one that does not exist yet"),
    ("load ./wal ./wal", "./wal is a directory: give a file with lines as `mrecordlog dump` prints them"),
    ("serve", "serve needs the directory of the log: `mrecordlog serve DIR`, or set MRECORDLOG_DIRECTORY"),
    ("top ./wal --interval 0s", "--interval must be above 0"),
    ("ls http://127.0.0.1:8080 --token-file ./nowhere", "./nowhere: cannot read the token file: No such file"),
]
"""What needs a look at the log, or at other options. The log has the queues of `three_queues`."""

NOT_USAGE = [
    ("ls ./nowhere", 1, "/nowhere: No such file or directory"),
    ("cat ./wal audt", 1, "queue 'audt' does not exist; did you mean 'audit'?"),
    ("append ./wal nope", 1, "queue 'nope' does not exist; --create creates it"),
    ("delete ./wal nope", 1, "queue 'nope' does not exist"),
    ("consumers ./wal audit --delete nope", 1, "with `mrecordlog consumers LOG`"),
    ("ls http://127.0.0.1:9", 5, "start a service with `mrecordlog serve DIR`, or name the directory of the log"),
]
"""What is spelt well and cannot be done."""


@pytest.mark.parametrize(("line", "sentence"), AT_THE_LINE)
def test_a_wrong_line_says_what_to_write(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line says it, and the usage of the command follows; nothing is printed for a pipe."""
    assert main(line.split()) == 2
    printed = capsys.readouterr()
    first, second, *_, last = printed.err.splitlines()
    assert sentence in first and printed.out == ""
    assert second.startswith("Usage: mrecordlog")
    assert last.startswith("see `mrecordlog") and last.endswith("--help`")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory that has a log."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MRECORDLOG_DIRECTORY", raising=False)
    build(tmp_path / "wal", three_queues)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("line", "sentence"), WHEN_IT_RUNS)
def test_what_cannot_be_combined_or_does_not_fit(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says what to change; the exit code is that of wrong usage."""
    assert main(line.split()) == 2
    printed = capsys.readouterr()
    assert (printed.out, sentence in printed.err, printed.err.count("\n")) == ("", True, 1)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("line", "code", "sentence"), NOT_USAGE)
def test_what_cannot_be_done_says_what_to_run_next(
    line: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code tells a script why."""
    assert main(line.split()) == code
    printed = capsys.readouterr()
    assert (printed.out, sentence in printed.err) == ("", True)


def test_a_missing_log_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """The error shows both forms that LOG can have, with an example of each."""
    assert main(["cat", "orders"]) == 2
    assert "LOG is the directory of a log (./wal), or the URL of a service (http://" in capsys.readouterr().err
