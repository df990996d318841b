"""What the machine's resolver knows of a DNS name."""

from __future__ import annotations

import pytest

from mrecordlog_async.servers.names import Endpoint, Lookup
from mrecordlog_async.servers.resolve import look_up


def test_a_name_is_looked_up_by_the_machine() -> None:
    """Requests carry the name and connect to the address."""
    assert Endpoint("http://localhost:8080", "127.0.0.1") in look_up(Lookup("http", "localhost", 8080))


def test_a_name_that_nobody_has_is_an_error() -> None:
    """The caller keeps what the name stood for before."""
    with pytest.raises(OSError, match=r"Name or service|No address|not known|failure"):
        look_up(Lookup("http", "wal.invalid", 8080))
