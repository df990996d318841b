"""The access log: one line per request, whatever a client sends."""

from __future__ import annotations

import logging

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from mrecordlog_async.cli.shell.logging_setup import TextFormatter
from mrecordlog_async.service.wire.access_log import AccessLogger, escaped


def test_a_client_forges_no_field(caplog: pytest.LogCaptureFixture) -> None:
    """Quotes, line ends, bytes that are no UTF-8 and control characters of both kinds are escaped."""
    caplog.set_level("INFO")
    sent = {"User-Agent": 'x" 200 0 "fake', "Referer": "\x9b2J\x1b[2J\r\n\u2028\x7f"}
    request = make_mocked_request("GET", "/healthz?a=1", headers=sent)
    AccessLogger(logging.getLogger("access"), "").log(request, web.Response(status=200), 0.1)
    (line,) = caplog.messages
    assert line.endswith(r'"GET /healthz?a=1 HTTP/1.1" 200 0 "\u009b2J\u001b[2J\r\n\u2028\u007f" "x\" 200 0 \"fake"')
    assert line.isascii()
    assert line.isprintable()
    assert escaped("\udcff") == r"\udcff"  # stands for a byte of a header outside UTF-8


def test_no_message_controls_a_terminal() -> None:
    """The text format escapes what is left after line ends: names and reasons of errors come from clients, too."""
    record = logging.LogRecord("x", logging.INFO, "", 0, "a\x1b[2J\x9b2J\x7f\tb\nc \u00e9", (), None)
    assert TextFormatter().format(record).endswith(r"info a\x1b[2J\x9b2J\x7f\x09b c é")
