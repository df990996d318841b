"""LOG that is the URL of a service: what is wrong with it is said before anything is sent, and without passwords."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mrecordlog_async.cli.main import main
from tests.cli.running import Ran

Run = Callable[..., Ran]


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


@pytest.mark.parametrize("log", ["http://h:1,http://i:1", "dns+http://h:1"])
@pytest.mark.parametrize(
    "command",
    [
        ("append", "q"),
        ("cat", "q"),
        ("configure", "q"),
        ("consume", "q", "--consumer", "c"),
        ("consumers",),
        ("delete", "q"),
        ("dump",),
        ("load",),
        ("ls",),
        ("top",),
        ("truncate", "q", "1"),
    ],
    ids=lambda command: command[0],
)
def test_a_log_is_a_single_one(command: tuple[str, ...], log: str, run: Run) -> None:
    """A position is one of a single log. `top` takes several, each as an argument."""
    refused = run(command[0], log, *command[1:])
    assert (refused.code, refused.out, "names several services: name one of them" in refused.err) == (2, "", True)


@pytest.mark.parametrize(
    ("log", "why"),
    [("http://", "'http://' is not the URL of a service"), ("unix:", "unix: names no socket")],
)
@pytest.mark.parametrize("command", ["ls", "top", "append"])
def test_a_url_that_cannot_be_one_is_wrong_usage(command: str, log: str, why: str, run: Run) -> None:
    """No attempt would make it right."""
    refused = run(command, log, *(["q"] if command == "append" else []))
    assert (refused.code, refused.out, why in refused.err) == (2, "", True)


@pytest.mark.parametrize(
    ("log", "code"),
    [("http://user:secret@127.0.0.1:1", 5), ("http://u:secret@h:1,http://user:secret@127.0.0.1:1", 2)],
)
@pytest.mark.parametrize("command", ["ls", "top", "dump", "truncate"])
def test_a_password_is_not_printed(command: str, log: str, code: int, run: Run) -> None:
    """Terminals, scripts and journals keep what a command prints."""
    failed = run(command, log, *(["q", "1"] if command == "truncate" else []))
    assert (failed.code, "127.0.0.1:1" in failed.err) == (code, True)
    assert "secret" not in failed.out + failed.err
    unknown = run(command, log.replace("http", "htp"))
    assert (unknown.code, "secret" in unknown.err, "is not a URL of a service" in unknown.err) == (2, False, True)
