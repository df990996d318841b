"""The access log: one line per request, whatever a client sends."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.cli.serve import TextFormatter
from mrecordlog_async.service.access_log import escaped, log_access
from tests.served import serving
from tests.service.test_security import raw
from tests.serving import Process, config


def test_a_client_forges_no_field(caplog: pytest.LogCaptureFixture) -> None:
    """Quotes, line ends, bytes that are no UTF-8 and control characters of both kinds are escaped."""
    caplog.set_level("INFO")
    scope: dict[str, Any] = {
        "method": "GET",
        "http_version": "1.1",
        "raw_path": b"/healthz",
        "query_string": b"a=1",
        "client": None,
        "headers": [
            (b"user-agent", b'x" 200 0 "fake'),
            (b"referer", "\x9b2J\x1b[2J\r\n\u2028\x7f".encode()),
        ],
    }
    log_access(scope, 200, 0, 0.1)
    (line,) = caplog.messages
    assert line.endswith(r'"GET /healthz?a=1 HTTP/1.1" 200 0 "\u009b2J\u001b[2J\r\n\u2028\u007f" "x\" 200 0 \"fake"')
    assert line.isascii()
    assert line.isprintable()
    assert escaped("\udcff") == r"\udcff"  # stands for a byte of a header outside UTF-8


def test_serve_logs_a_line_per_request(directory: Path) -> None:
    """With the size of its response, and only where that was asked for."""
    with Process(directory, config(directory.parent / "settings", access_log=True)) as service:
        for _ in range(2):
            assert service._status_of("/readyz") == 200
        _, log = service.stop()
    lines = [line for line in log.splitlines() if "GET /readyz HTTP/1.1" in line]
    assert len(lines) >= 2
    assert "127.0.0.1 [" in lines[-1]
    assert '" 200 ' in lines[-1]


async def test_what_the_application_does_not_see_is_logged_and_counted(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line for each refusal, also where nobody could read a request."""
    caplog.set_level("INFO", "mrecordlog_async.access")
    async with serving(directory, access_log=True) as served:
        for sent, line in (
            (b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", '"GET /healthz HTTP/2.0" 505 '),
            (b"no HTTP\r\n\r\n", '"- - HTTP/-" 400 '),
        ):
            async with raw(served) as connection:
                await connection.send(sent)
                assert await connection.status() == int(line.split()[-1])
                assert any(line in message for message in caplog.messages), caplog.messages
        assert served.service.problems == {505: 1, 400: 1}


def test_no_message_controls_a_terminal() -> None:
    """The text format escapes what is left after line ends: names and reasons of errors come from clients, too."""
    record = logging.LogRecord("x", logging.INFO, "", 0, "a\x1b[2J\x9b2J\x7f\tb\nc \u00e9", (), None)
    assert TextFormatter().format(record).endswith(r"info a\x1b[2J\x9b2J\x7f\x09b c é")
