"""Help fits a terminal, and errors say what to write instead."""

from __future__ import annotations

import pytest

from mrecordlog_async.cli.main import GROUPS, build_parser, main
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.settings import add_settings, gather


def commands() -> dict[str, Parser]:
    """Return the parser of each command."""
    return build_parser().commands


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a wrong command line prints."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_help_lists_every_command_in_its_group() -> None:
    """Each command is listed under one heading, with one sentence."""
    text = build_parser().format_help()
    assert sum(len(group) for _, group in GROUPS) == len(commands())
    headings = [text.index(f"{title}:") for title, _ in GROUPS]
    assert headings == sorted(headings)
    for name in commands():
        assert text.count(f"\n  {name} ") == 1


@pytest.mark.parametrize("name", ["", *commands()])
def test_prose_of_a_help_fits_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only examples, which can be pasted, are wider; help contains no Markdown."""
    monkeypatch.setenv("COLUMNS", "80")
    parser = commands()[name] if name else build_parser()
    lines = parser.format_help().splitlines()
    assert [line for line in lines if len(line) > 80 and "mrecordlog " not in line] == []
    assert lines[0].startswith(f"usage: {parser.prog}")


@pytest.mark.parametrize("name", ["append", "cat", "ls", "truncate", "delete", "top", "dump", "load"])
def test_the_log_is_the_first_argument(name: str) -> None:
    """The first argument is a directory or a URL, the second is the queue."""
    words = commands()[name].call().removeprefix(f"mrecordlog {name} ").split()
    assert words[0] == "LOG"
    assert "QUEUE" not in words or words[1] == "QUEUE"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("cat orders --dir ./wal", "cat: there is no --dir; write `mrecordlog cat ./wal QUEUE [options]`"),
        ("ls --url http://h:1", "ls: there is no --url; write `mrecordlog ls http://h:1 [options]`"),
        ("cat orders", "mrecordlog cat: missing QUEUE"),
        ("ls", "mrecordlog ls: missing LOG"),
        ("top", "mrecordlog top: missing LOG"),
        ("ls localhost:8080", "'localhost:8080' is not a URL of a service: write http://localhost:8080"),
        ("ls http:/localhost:8080", "'http:/localhost:8080' is not a URL of a service: write http://localhost:8080"),
        ("ls https:localhost", "'https:localhost' is not a URL of a service: write https://localhost"),
        ("verify http:/localhost:8080", "'http:/localhost:8080' is a URL, and this command needs the files"),
        ("append ./wal orders hello", "append: unexpected 'hello': the record is read from standard input"),
        ("ls ftp://h/x", "'ftp://h/x' is not a URL of a service: write http://h/x"),
        ("verify http://h:1", "'http://h:1' is a URL, and this command needs the files: name the directory"),
        ("snapshot ./wal s3://b/x", "'s3://b/x' is a URL, and this command needs the files: name the directory"),
        ("repair ./wal --to s3://b/x", "'s3://b/x' is a URL, and this command needs the files"),
        ("verfy ./wal", "mrecordlog: unknown command 'verfy'; did you mean verify?"),
        ("repair ./wal --aply", "unknown option --aply; did you mean --apply?"),
        ("serve ./wal --memroy-bytes=1", "unknown option --memroy-bytes; did you mean --memory-bytes?"),
        ("serve ./wal --access-log true", "unexpected 'true': a switch takes no value"),
        ("serve --access-log true", "a switch takes no value; write ./true for a directory of that name"),
        ("serve ./wal --access-log=true", "is a switch and takes no value"),
        ("load ./wal --json lines more", "write the arguments before the options"),
        ("cat ./wal q extra", "cat: unexpected 'extra': the command takes no argument after LOG QUEUE"),
        ("ls ./wal extra --json", "ls: unexpected 'extra': the command takes no argument after LOG"),
        ("load ./wal --segment-bytes 1XB", "--segment-bytes: '1XB' is not a size such as 512MiB"),
        ("load ./wal --segment-bytes 5", "--segment-bytes: segment_bytes must be at least 32768, not 5"),
        ("repair ./wal --segment-bytes 5", "--segment-bytes: segment_bytes must be at least 32768, not 5"),
        ("top ./wal --interval soon", "--interval: 'soon' is not a time such as 10s, 500ms or 2m"),
        ("truncate ./wal q last", "POSITION: 'last' is not a whole number of at least 0"),
    ],
)
def test_wrong_usage_says_what_to_write(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line says it; the usage of the command follows."""
    first, second, *_ = refused(capsys, *line.split()).splitlines()
    assert sentence in first and "LOG, LOG" not in first
    assert second.startswith("usage: mrecordlog")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "load http://h:1 --segment-bytes 1GiB",
            "--segment-bytes is for a directory; a service has that of `mrecordlog",
        ),
        ("ls ./wal --token-file t", "--token-file is for a service, and ./wal is a directory"),
        ("top ./wal ./other --token-file t", "--token-file is for a service, and ./wal is a directory"),
    ],
)
def test_an_option_without_effect_is_refused(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows that something else was meant than what would be done."""
    assert main(line.split()) == 2
    printed = capsys.readouterr()
    assert (printed.out, sentence in printed.err) == ("", True)


def test_the_bare_name_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Who types it wants to know what there is. The exit code is that of wrong usage, for a script that lost a word."""
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (build_parser().format_help(), "")


@pytest.mark.parametrize(("words", "same"), [(["help"], ["--help"]), (["help", "ls"], ["ls", "--help"])])
def test_help_is_a_command_too(words: list[str], same: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As in git and cargo: `mrecordlog help`, `mrecordlog help ls`."""
    printed = []
    for each in (words, same):
        with pytest.raises(SystemExit) as ended:
            build_parser().parse_args(each)
        assert ended.value.code == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""


def test_a_missing_log_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """The error shows both forms that LOG can have, with an example of each."""
    told = refused(capsys, "cat", "orders")
    assert "LOG is the directory of a log (./wal), or the URL of a service (http://" in told


@pytest.mark.parametrize(
    ("arguments", "variables", "on"),
    [
        ([], {}, False),
        (["--access-log"], {}, True),
        ([], {"MRECORDLOG_ACCESS_LOG": "true"}, True),
        (["--no-access-log"], {"MRECORDLOG_ACCESS_LOG": "1"}, False),
    ],
)
def test_a_switch_is_an_option_without_a_value(arguments: list[str], variables: dict[str, str], on: bool) -> None:
    """Its variable and its key in the file have a value; the option wins."""
    parser = Parser()
    add_settings(parser)
    assert gather(parser.parse_args(arguments), variables)["access_log"] is on
