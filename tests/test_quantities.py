"""Sizes and times are read the same way everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mrecordlog_async.cli.settings import SETTINGS
from mrecordlog_async.options import MIB
from mrecordlog_async.quantities import age, parse_moment, parse_seconds, parse_size, span
from mrecordlog_async.spark.options import Options, interval, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.9, "0 s"), (9.5, "9 s"), (119.9, "119 s"), (120, "2 min"), (7_199, "119 min"), (172_800, "2 d")],
)
def test_an_age_is_in_whole_units(seconds: float | None, text: str) -> None:
    """It says what is over: a holder that may be replaced after 10 s was not seen 10 s ago after 9.5 s."""
    assert age(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(90, "90 s"), (0.5, "0.5 s"), (120, "2 min"), (604_800, "7 d")])
def test_a_time_that_was_set_is_written_exactly(seconds: float, text: str) -> None:
    """In the largest unit of which it is a whole number."""
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("1KiB", 1024),
        ("64k", 65_536),
        ("4G", 4 << 30),
        ("256m", 256 << 20),
        ("256 mib", 256 << 20),
        ("1.5MiB", 1_572_864),
        ("2 gb", 2 * 10**9),
        ("128MB", 128 * 10**6),
        ("10kB", 10_000),
        ("1T", 1 << 40),
    ],
)
def test_sizes_mean_the_same_for_every_reader(text: str, value: int) -> None:
    """k, m, g and KiB, MiB, GiB are powers of 1024, kB, MB, GB powers of 1000, in any case: even in jobs of Spark."""
    (memory,) = (setting for setting in SETTINGS if setting.name == "memory_bytes")
    source = Options.parse({"servers": "http://h:1", "maxBytesPerTrigger": text})
    assert parse_size(text) == memory.read(text) == size(text) == source.bytes_per_trigger == value


@pytest.mark.parametrize(
    "file", ["mrecordlog.service", "mrecordlog.toml", "kubernetes.yaml", "kubernetes-several.yaml"]
)
def test_sizes_in_the_shipped_files_are_read(file: str) -> None:
    """Those of the service, and that of systemd, whose units are powers of 1024 too."""
    text = (Path(__file__).parents[1] / "examples" / "deploy" / file).read_text()
    found = re.findall(r'(?:_BYTES=|MemoryMax=|_bytes = "|-bytes", ")(\w+)', text)
    assert found and all(parse_size(size) % MIB == 0 for size in found)


def test_a_large_size_is_exact() -> None:
    """A whole number of bytes is not rounded."""
    assert parse_size("9007199254740993") == 9007199254740993


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("500ms", 0.5), ("2m", 120), ("1.5s", 1.5), ("1min", 60), ("1h", 3600), ("30.0", 30)],
)
def test_times_mean_the_same_for_every_reader(text: str, value: float) -> None:
    """The service's settings, the data source's options and the arguments of `drain` agree."""
    (drain,) = (setting for setting in SETTINGS if setting.name == "drain_seconds")
    source = Options.parse({"servers": "http://h:1", "timeout": text, "serverWait": text})
    assert parse_seconds(text) == drain.read(text) == interval(text) == value
    assert (source.timeout_seconds, source.server_wait_seconds) == (value, value)


@pytest.mark.parametrize("text", ["", "s", "-1", "1 day", "1e3", "nan", "٣", "5 s x"])
def test_what_is_not_a_quantity_is_refused(text: str) -> None:
    """The message shows the text and an example."""
    with pytest.raises(ValueError, match="is not a time such as"):
        parse_seconds(text)
    with pytest.raises(ValueError, match="is not a size such as"):
        parse_size(text)


@pytest.mark.parametrize("text", ["1.5", "0.5b", " 4.2 B "])
def test_a_part_of_a_byte_is_refused(text: str) -> None:
    """`memory_bytes = 1.5` lacks its unit: it is not one byte. What is whole, or has a unit, is taken as before."""
    with pytest.raises(ValueError, match="is not a whole number of bytes: write a unit after it, such as MiB or G"):
        parse_size(text)
    assert (parse_size("2.0"), parse_size("1.1KiB"), parse_size("0.0")) == (2, 1_126, 0)


@pytest.mark.parametrize("text", ["", "later", "-1h", "999999d", "9999-12-31T23:59-23:00", "0001-01-01T00:00+23:00"])
def test_what_is_not_a_moment_is_refused(text: str) -> None:
    """The message shows the text and examples, including for a time that has no date in the zone of this machine."""
    with pytest.raises(ValueError, match="is not a time such as 10min"):
        parse_moment(text)
