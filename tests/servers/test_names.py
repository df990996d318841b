"""Servers as users write them: URLs, names and DNS names."""

from __future__ import annotations

import pytest

from mrecordlog_async.servers.names import Endpoint, Lookup, check_url, parse_lookup


def test_a_dns_name_has_a_scheme_and_a_port() -> None:
    """Or a name of SRV records, which have ports themselves."""
    assert parse_lookup("dns+https://wal:8080") == Lookup("https", "wal", 8080)
    assert parse_lookup("dns+http://_http._tcp.wal") == Lookup("http", "_http._tcp.wal", None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dns+http://wal", "write dns\\+http://wal:8080"),
        ("dns+unix:/run/x", "is not a DNS name of services"),
    ],
)
def test_a_misspelt_dns_name_is_refused_at_once(name: str, message: str) -> None:
    """The message says what to write."""
    with pytest.raises(ValueError, match=message):
        parse_lookup(name)


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
