"""The English stays plain: phrases that were removed do not come back, with what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "mrecordlog_async").rglob("*.py"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*"))]

EVERYWHERE = {
    r"up to then": "before, until",
    r"lies in the nature": "is",
    r"for the while": "meanwhile",
    r"found no space": "waits for space",
    r"\banew\b": "again",
    r"given away": "assigned",
    r"held against": "checked against",
}
"""Phrases that stand nowhere any more, in pages or in the package: pattern → what to write instead."""

IN_PAGES = {
    r"(?<!there )\bis no (?!longer|more)": "is not a",
    r"(he|she|it|they) tells?\b": "reports, prints",
    r"\bwhoever\b": "a client that",
    r"\b(an?|the|its|every|whole) answers?\b": "response",
    r"\bper cent\b": "%",
    r"\b(records?|bytes|lines|files|MB|GB|times) an? (second|day|year|minute|request)\b": "per second",
}
"""Phrases that pages do not have. One that the package has lost too moves to `EVERYWHERE`."""


def _found(path: Path, words: dict[str, str]) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    return [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]!r}: write {better!r}"
        for pattern, better in words.items()
        for hit in re.finditer(pattern, text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", [path for path in PAGES if path.suffix == ".md"], ids=lambda path: path.name)
def test_pages_are_in_plain_english(page: Path) -> None:
    """A reader meets one word for each thing."""
    assert _found(page, EVERYWHERE | IN_PAGES) == []


def test_the_package_is_in_plain_english() -> None:
    """Messages, help and docstrings keep to the words that are decided."""
    assert [line for path in PACKAGE for line in _found(path, EVERYWHERE)] == []
