"""Options are read and checked once, and none is ignored."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields
from datetime import UTC, datetime

import pytest

from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.offsets import encoded
from mrecordlog_async.spark.options import OPTIONS, OptionError, Options, Subscription, parse_servers
from mrecordlog_async.spark.state import LogAt, LogState, QueueAt
from tests.compatibility.surface import hooks


def parse(**given: str) -> Options:
    return Options.parse({"servers": "http://h:8080", **given})


def test_a_bare_address_is_the_server_default() -> None:
    """A single server needs no name."""
    assert parse_servers("http://h:8080/") == (Endpoint("http://h:8080", name="default"),)


def test_servers_have_names() -> None:
    """Servers are sorted by name; an address may contain an equals sign."""
    assert parse_servers("b=http://h2:1, a=https://h1/base?x=1") == (
        Endpoint("https://h1/base?x=1", name="a"),
        Endpoint("http://h2:1", name="b"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h:8080",
        "a=h:8080",
        "a=ftp://h",
        "a=http://h,a=http://i",
        "http://h,http://i",
        "=http://h",
        " =dns+http://h:1",
    ],
)
def test_servers_that_make_no_sense_are_refused(text: str) -> None:
    """An address without scheme or host is refused, and so is an empty name, or one that occurs twice.

    Readers of Delta tables take the empty text in a partition column for null.
    """
    with pytest.raises(OptionError):
        parse_servers(text)


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://h:port", "http://h:99999", "http://a..b:1", f"http://{'h' * 64}", "dns+http://a..b:1"],
)
def test_an_address_that_no_connection_can_be_opened_to_is_refused_at_once(url: str) -> None:
    """A typing error in host or port is a sentence about the option, not a traceback, and is not retried."""
    with pytest.raises(OptionError, match=r"^servers: "):
        parse_servers(f"a={url}")


def test_servers_may_have_a_token_each() -> None:
    """`token.NAME` is for one server, `token` for the others; neither is shown, and a wrong name is refused."""
    servers = "a=http://h1:1,B=http://h2:1"
    parsed = Options.parse({"servers": servers, "token": "secret", "token.B": "secret-2"})
    assert parsed.all_tokens == {"B": "secret-2", "": "secret"}
    assert "secret" not in repr(parsed)
    with pytest.raises(OptionError, match=r"token\.c is for no server of this name"):
        Options.parse({"servers": servers, "token.c": "own"})
    with pytest.raises(OptionError, match=r"token\.a is for the servers A and a"):
        Options.parse({"servers": "a=http://h1:1,A=http://h2:1", "token.a": "own"})


@pytest.mark.parametrize("option", ["token", "token.a"])
def test_a_token_with_a_line_break_is_refused_and_not_shown(option: str) -> None:
    """It comes from reading a file whole. Python's own error about such a header repeats the token."""
    with pytest.raises(OptionError, match=rf"{option}: the token holds a line break") as refused:
        Options.parse({"servers": "a=http://h:1", option: "0123456789abcdef\n"})
    assert "0123" not in str(refused.value)


def test_a_password_is_not_shown() -> None:
    """A password is shown neither in an error about the address nor when the options are printed."""
    with pytest.raises(OptionError) as refused:
        parse_servers("a=ftp://me:secret@h")
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(Options.parse({"servers": "http://me:secret@h"}))


def test_a_table_is_given_its_options_between_properties() -> None:
    """`CREATE TABLE … OPTIONS (…)` passes options among the table's properties, which are ignored."""
    properties = {"provider": "mrecordlog", "owner": "root", "comment": "x", "mine": "7"}
    table = Options.parse(
        {"servers": "http://h", "option.servers": "http://h", "option.payload": "false", **properties}
    )
    assert (table.servers, table.payload) == ((Endpoint("http://h", name="default"),), False)
    with pytest.raises(OptionError, match="start `mrecordlog serve` on the directory"):
        Options.parse({"path": "file:/var/log", "location": "file:/var/log", **properties})
    with pytest.raises(OptionError, match="did you mean payload"):
        Options.parse({"option.servers": "http://h", "option.paylod": "false", **properties})


def test_sizes_may_have_a_unit() -> None:
    """Units are powers of two, as in Spark."""
    sizes = {"1000": 1_000, "256m": 256 << 20, "1g": 1 << 30, "8 KiB": 8_192, "2MB": 2_000_000}
    for text, size in sizes.items():
        assert parse(maxBytesPerTrigger=text).bytes_per_trigger == size


def test_queues_with_commas_are_named_as_json() -> None:
    """A JSON list can name queues that contain commas."""
    assert parse(subscribe="a, b").subscription.names == frozenset({"a", "b"})
    assert parse(subscribe='["a,b", " c"]').subscription.names == frozenset({"a,b", " c"})


def test_starting_offsets_may_be_copied_from_a_checkpoint() -> None:
    """A checkpoint's offset may be used as positions, by the names of its servers."""
    copied = encoded({"4f": LogState("default", LogAt("o", 99), {"q": QueueAt(1, 7)})}, {})
    assert parse(startingOffsets=json.dumps(copied)).starting == {"default": {"q": 7}}
    assert parse(startingOffsets='{"default": {"q": [1, 7, 99]}}').starting == {"default": {"q": 7}}


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("1795339800000", 9),
        ("2026-11-22T09:30:00Z", 9),
        ("2026-11-22 09:30:00.000", 9),
        ("2026-11-22 09:30", 9),
        ("2026-11-22T09:30:00+01:00", 8),
        ("2026-11-22 09:30:00 Europe/Berlin", 8),
        ("2026-11-22 09:30:00UTC", 9),
    ],
)
def test_a_time_is_read_as_spark_writes_it(text: str, hour: int) -> None:
    """A time is milliseconds since 1970, as for other sources, or a timestamp; without a zone it is in UTC."""
    assert parse(startingTimestamp=text).starting == datetime(2026, 11, 22, hour, 30, tzinfo=UTC)
    assert parse(endingTimestamp=text).ending == datetime(2026, 11, 22, hour, 30, tzinfo=UTC)


def test_a_time_zone_applies_to_times_without_one() -> None:
    """timeZone has the meaning that it has for Spark's own sources of text."""
    for zone in ("+02:00", "Africa/Cairo"):
        found = parse(startingTimestamp="2026-11-22", endingTimestamp="2026-11-22T00:00:00Z", timeZone=zone)
        assert found.starting == datetime(2026, 11, 21, 22, tzinfo=UTC)
        assert found.ending == datetime(2026, 11, 22, tzinfo=UTC)


def test_names_come_in_any_case() -> None:
    """Names are matched in any case, because Spark changes it."""
    assert Options.parse({"SERVERS": "http://h:1", "maxrecordspertrigger": "7"}).records_per_trigger == 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"failOnDataLos": "true"}, "did you mean failOnDataLoss"),
        ({"maxOffsetsPerTrigger": "7"}, "did you mean maxRecordsPerTrigger"),
        ({"paths": '["/a", "/b"]'}, "start `mrecordlog serve` on each directory"),
        ({"path": "/a"}, "start `mrecordlog serve` on the directory, and set servers"),
        ({"checkpoint": "/a"}, "checkpoint was removed: a stream needs none"),
        ({"stopAtEnd": "true"}, "this option was removed: `mrecordlog drain` set it"),
        ({"startingOffsets": '{"version": 2, "logs": {}}'}, "earliest, latest or JSON"),
        ({"subscribe": ""}, "expected queue names"),
        ({"subscribe": " , "}, "expected queue names"),
        ({"subscribe": '["a", 7]'}, "expected queue names"),
        ({"maxBytesPerTrigger": "256 parsecs"}, "is not a size"),
        ({"maxBytesPerTrigger": "0m"}, "at least 1 byte"),
        ({"startingOffsets": '{"other": {"q": 7}}'}, "no server 'other'"),
        ({"truncate": "true", "asyncProgressTrackingEnabled": "true"}, "not both"),
        ({"serverWait": "-1"}, "seconds"),
        ({"truncate": "yes"}, "true or false"),
        ({"queue": ""}, "queue: expected a name"),
        ({"maxRecordsPerTrigger": "0"}, "at least 1"),
        ({"maxRecordsPerTrigger": "many"}, "whole number"),
        ({"maxRecordsPerTrigger": "²"}, "whole number"),
        ({"timeout": "-1"}, "seconds"),
        ({"startingOffsets": "yesterday"}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"a": {"q": -3}}'}, "JSON"),
        ({"startingOffsets": '{"a": 7}'}, "JSON"),
        ({"endingOffsets": "earliest"}, "latest or JSON"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970, or a time"),
        ({"startingTimestamp": ""}, "milliseconds since 1970, or a time"),
        ({"startingTimestamp": "20261122"}, "milliseconds since 1970, or a time"),
        ({"endingTimestamp": "2026-11-22 09:30 Nowhere/Else"}, "not a time zone"),
        ({"startingTimestamp": "2026-11-22", "timeZone": "+99"}, "not a time zone"),
        ({"startingTimestamp": "2026-11-22", "startingOffsets": "latest"}, "not both"),
        ({"startingTimestamp": "2026-11-22", "endingTimestamp": "2026-11-21"}, "swap them"),
        ({"startingOffsetsByTimestamp": "{}"}, "did you mean startingTimestamp"),
        ({"truncate": "true", "startingTimestamp": "2026-11-22"}, "requires startingOffsets=earliest"),
        ({"subscribe": "a", "subscribePattern": "b"}, "not both"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"truncate": "true", "startingOffsets": "latest"}, "requires startingOffsets=earliest"),
        ({"truncate": "true", "startingOffsets": '{"a": {"q": 5}}'}, "requires startingOffsets=earliest"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], message: str) -> None:
    """Each invalid option is refused with a sentence that says what is expected."""
    with pytest.raises(OptionError, match=message):
        parse(**given)


def test_no_servers_are_refused() -> None:
    """Nothing is read from nowhere."""
    with pytest.raises(OptionError, match="set the option servers"):
        Options.parse({})


def test_what_a_stream_cannot_do_is_refused() -> None:
    """An end is refused for streams."""
    for given in (parse(endingOffsets='{"default": {"q": 5}}'), parse(endingTimestamp="2026-11-22")):
        with pytest.raises(OptionError):
            given.check_stream_read()


def test_pushed_filters_are_refused() -> None:
    """pushdown=true would give wrong rows for later queries: it is refused, with what to use instead; false is not."""
    assert parse(pushdown="false") == parse()
    with pytest.raises(OptionError, match=r"misses rows\. Remove the option; to fetch less, set subscribe"):
        parse(pushdown="True")


def test_what_a_batch_cannot_do_is_refused() -> None:
    """truncate and startingOffsets=latest are refused for batch reads."""
    for given in (
        parse(truncate="true"),
        parse(startingOffsets="latest"),
        parse(consumer="lake"),
        parse(failOnServerDown="atEnd"),
    ):
        with pytest.raises(OptionError):
            given.check_batch_read()


def test_what_a_write_cannot_do_is_refused() -> None:
    """A write needs exactly one service."""
    for servers in ("a=http://h,b=http://i", "dns+http://h:1"):
        with pytest.raises(OptionError, match="goes to one server"):
            Options.parse({"servers": servers}).check_write()


def test_offsets_may_be_copied_from_a_checkpoint() -> None:
    """A position may be [id, position]."""
    assert parse(startingOffsets='{"default": {"q": [17, 5], "r": -1}}').starting == {"default": {"q": 5, "r": -1}}


def test_a_subscription_is_names_a_pattern_or_all() -> None:
    """A pattern must match the whole name."""
    assert parse(subscribe="a, b").subscription == Subscription(names=frozenset({"a", "b"}))
    pattern = parse(subscribePattern=r"orders-\d+").subscription
    assert pattern.includes("orders-12") and not pattern.includes("old-orders-12")
    assert parse().subscription.includes("anything")


def test_options_travel() -> None:
    """Options can be pickled, because Spark sends them to executors."""
    parsed = parse(subscribe="a", token="secret")
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    assert "secret" not in repr(parsed)


def test_paths_may_have_commas() -> None:
    """Commas separate paths, except in a JSON list."""
    given = {"servers": "http://h:1"}
    assert Options.parse({**given, "syncDirs": "/a,/b"}).sync_directories == ("/a", "/b")
    assert Options.parse({**given, "syncDirs": '["/a, b"]'}).sync_directories == ("/a, b",)


def test_every_option_has_one_row() -> None:
    """The manual lists each option once, with its default."""
    rows = hooks().spark_options().splitlines()[2:]
    names = [option.name for option in OPTIONS]
    assert [row.split("`")[1] for row in rows] == names
    assert rows[names.index("startingOffsets")].startswith("| `startingOffsets` | `earliest` | read | "), (
        "as it is typed"
    )
    assert len({name.lower() for name in names}) == len(names)


def test_every_field_is_set_by_an_option() -> None:
    """A field without an option could not be set; `tokens` has one name for each server."""
    assert {each.name for each in fields(Options)} - {option.field for option in OPTIONS} == {"tokens"}


def test_a_time_in_an_unknown_zone_is_refused_at_once() -> None:
    """A wrong zone is an error even if no time needs it."""
    with pytest.raises(OptionError, match="timeZone: 'Mars' is not a time zone"):
        parse(timeZone="Mars")


def test_positions_of_a_checkpoint_in_which_two_logs_have_one_server() -> None:
    """The positions of both are taken: without them, what was read would be read again."""
    logs = {
        "a" * 32: {"server": "a", "at": None, "queues": {"q": [1, 50]}},
        "b" * 32: {"server": "a", "at": None, "queues": {"r": [2, 7]}},
    }
    offset = json.dumps({"version": 3, "logs": logs})
    parsed = Options.parse({"servers": "a=http://h:1", "startingOffsets": offset})
    assert parsed.starting == {"a": {"q": 50, "r": 7}}


def test_a_url_with_a_user_and_a_token() -> None:
    """A request can have one of them; the error shows neither."""
    servers = "a=http://user:secret@h:1,b=http://h:2"
    for given in ({"token": "0123456789"}, {"token.a": "0123456789"}):
        with pytest.raises(OptionError, match=r"server 'a'.* user name") as refused:
            Options.parse({"servers": servers, **given})
        assert "secret" not in str(refused.value) and "0123" not in str(refused.value)
    assert Options.parse({"servers": servers, "token.b": "0123456789"}).tokens == {"b": "0123456789"}
