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


SERVICE = "not the URL of a service"


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("localhost:8080", "write http://localhost:8080"),
        ("127.0.0.1", "write http://127.0.0.1"),
        ("unix:", "write unix:/path/to/socket"),
        ("", SERVICE),
        ("http://", SERVICE),
        ("ftp://h", SERVICE),
        ("http://h:x", SERVICE),
        ("http://h:99999", SERVICE),
        ("http://[::1", SERVICE),
        ("http://a\\b", SERVICE),
        ("http://h?x", SERVICE),
        ("http://a..b:8080", SERVICE),
        (f"http://{'a' * 64}:8080", SERVICE),
    ],
)
def test_what_is_not_the_url_of_a_service_is_refused(url: str, advice: str) -> None:
    """The message says what to write."""
    with pytest.raises(ValueError, match=advice):
        check_url(url)


def test_an_endpoint_is_shown_without_its_password() -> None:
    """Where it is printed."""
    endpoint = Endpoint("http://me:secret@h:1", "10.0.0.1")
    assert "secret" not in f"{endpoint} {endpoint!r}"


@pytest.mark.parametrize(
    "url",
    ["http://me:secret@", "http://me:sec/ret@h", "me:secret@h:80", "http://me:secret@h?x", "http://me:secret@h:x"],
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    """A character in the password may be what makes it wrong."""
    with pytest.raises(ValueError, match=SERVICE) as refused:
        check_url(url)
    assert "sec" not in str(refused.value)
