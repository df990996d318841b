"""Servers as users write them: URLs, names and DNS names."""

from __future__ import annotations

import pytest

from mrecordlog_async.servers.names import Endpoint, Lookup, check_url, parse


def test_urls_names_and_dns_names() -> None:
    """One text with commas, several texts, or a mapping."""
    a, b = Endpoint("http://h:1", None, "a"), Endpoint("unix:/run/wal.sock")
    assert parse("a=http://h:1, unix:/run/wal.sock") == parse(["a=http://h:1", "unix:/run/wal.sock"]) == [a, b]
    assert parse({"a": "http://h:1"}) == [a]
    assert parse("dns+https://wal:8080") == [Lookup("https", "wal", 8080)]
    assert parse("wal=dns+https://wal:8080") == [Lookup("https", "wal", 8080, "wal")]
    assert parse("http://h:1,http://h:1") == [Endpoint("http://h:1")]


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ("", "a fleet needs servers"),
        ("wal:8080", "write http://wal:8080"),
        ("dns+http://wal", "write dns\\+http://wal:8080"),
        ("dns+unix:/run/x", "is not a DNS name of services"),
        ("a=http://h:1,a=http://h:2", "two servers are called 'a'"),
    ],
)
def test_a_misspelt_server_is_refused_at_once(servers: str, message: str) -> None:
    """The message says what to write."""
    with pytest.raises(ValueError, match=message):
        parse(servers)


@pytest.mark.parametrize(
    "url", ["http://h", "https://h:1/base/", "http://[::1]:8080", "http://me:secret@h", "HTTP://h", "unix:/s"]
)
def test_urls_of_services(url: str) -> None:
    """A scheme and a host, and what may stand around them."""
    check_url(url)


@pytest.mark.parametrize(
    "url", ["http://", "ftp://h", "http://h:x", "http://h:99999", "http://[::1", "http://a\\b", "http://h?x", "unix:"]
)
def test_what_is_not_the_url_of_a_service_is_refused(url: str) -> None:
    """The message says what to write."""
    with pytest.raises(ValueError, match=r"http://host:port|unix:/path"):
        check_url(url)


def test_a_password_is_not_shown() -> None:
    """Neither in messages, nor where an endpoint is printed."""
    endpoint = Endpoint("http://me:secret@h:1", "10.0.0.1")
    assert "secret" not in f"{endpoint} {endpoint!r}"
    with pytest.raises(ValueError, match="not the URL") as refused:
        check_url("http://me:secret@h:x")
    assert "secret" not in str(refused.value)
