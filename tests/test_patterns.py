"""Patterns of names: what they match, and in what time."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mrecordlog_async.patterns import ANY, beginning_of, is_pattern, matches


@given(st.text("ab*", max_size=8), st.text("ab*", max_size=10))
def test_a_pattern_matches_what_the_regular_expression_matches(pattern: str, name: str) -> None:
    """`*` stands for any characters, or none. A name may contain it too."""
    expected = re.compile(".*".join(map(re.escape, pattern.split(ANY))), re.DOTALL)
    assert matches(pattern, name) == (expected.fullmatch(name) is not None)
    if matches(pattern, name):
        assert name.startswith(beginning_of(pattern))


@pytest.mark.parametrize(
    ("pattern", "name"), [("*", ""), ("*", "a\nb"), ("a.*", "a.b"), ("*.log", "x.log"), ("a*a", "aa"), ("q", "q")]
)
def test_only_the_star_is_special(pattern: str, name: str) -> None:
    """A dot is a dot, and a star matches the end of a line too."""
    assert matches(pattern, name) and is_pattern(pattern) == (ANY in pattern)


@pytest.mark.parametrize(("pattern", "name"), [("a*a", "a"), ("a.*", "ab"), ("*b*b*", "abc"), ("a", "A"), ("", "a")])
def test_parts_do_not_overlap(pattern: str, name: str) -> None:
    """Each character of the name is used once."""
    assert not matches(pattern, name)


def test_many_stars_take_no_longer_than_few() -> None:
    """A pattern that makes a regular expression go back without end is compared in one pass."""
    assert not matches("*a" * 100 + "b", "a" * 60_000)
    assert not matches("*a*a*a*a*a*a*a*a*ab", "a" * 64)
    assert matches("*a" * 100, "a" * 60_000)
