"""The English stays plain: phrases that were removed do not come back, with what to write instead.

The tests here check the pages, the messages, comments and docstrings of the package, and those of the tests but for
their data.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "mrecordlog_async").rglob("*.py"))
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]

EVERYWHERE = {
    r"up to then": "before, until",
    r"lies in the nature": "is",
    r"for the while": "meanwhile",
    r"found no space": "waits for space",
    r"\banew\b": "again",
    r"given away": "assigned",
    r"\b(hold|holds|held) \w+ against\b|held against": "checked against",
    r"(?<!there )\bis no (?!longer|more)": "is not a",
    r"\bof (its|their) own\b(?! \w)": "its own, a separate",
    r"\bbehind (it|them|this|that|those|the|damage|COMMITs?)\b": "after, past",
    r"\bbeside\b": "next to, while X runs",
    r"\bwhoever\b": "the one that, every",
    r"\b(tells|told)\b(?! (to|apart)\b)": "reports, prints, shows",
    r"\bper cent\b": "%",
    r"\b(records?|bytes|lines|rows|files|MB|GB|times) an? (second|day|year|minute|request)\b": "per second",
    r"\bwhat of\b": "which part of",
    r"\b(become|came|comes) of\b": "happens to",
    r"\bmoved on\b": "continued",
    r"\blets? go of\b": "release",
    r"\bg[eo]ts? through\b": "succeed",
}
"""Phrases that appear nowhere: pattern → what to write instead."""

SYNTAX = {
    r"(?<!and )(?<!is )\balso (if|while|when|where|after|before|once|during|without|with)\b": "even, including",
    r"\bso (many|long)\b(?! as\b)": "this many, this long",
}
"""As above, except in the changelog: what it says about released versions stays as it was published."""

IN_PAGES = {
    r"\b(an?|the|its|every|whole) answers?\b": "response",
}
"""Phrases that do not appear in pages. One that the package has lost too moves to `EVERYWHERE`."""


NOUN_CLAUSE = re.compile(r"(Which|What|Whether|How|When|Where|Why|Who)\b")
"""A docstring that begins like this is a riddle until its end. It names the thing, or begins with a verb."""


def _found(name: Path, parts: Iterable[tuple[int, str]], words: dict[str, str]) -> list[str]:
    parts = list(parts)
    whole = "\0".join(text for _, text in parts)  # a search in each part takes ten times as long
    words = {pattern: better for pattern, better in words.items() if re.search(pattern, whole, re.IGNORECASE)}
    return [
        f"{name.relative_to(ROOT)}:{line + text.count(chr(10), 0, hit.start())}: {hit[0]!r}: write {better!r}"
        for line, text in parts
        for pattern, better in words.items()
        for hit in re.finditer(pattern, text, re.IGNORECASE)
    ]


def _page(path: Path) -> Iterator[tuple[int, str]]:
    yield 1, path.read_text(encoding="utf-8")


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the strings that stand alone: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _strings(source: str) -> Iterator[tuple[int, str]]:
    """Yield all strings, with the constant parts of f-strings: docstrings and messages."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_are_in_plain_english(page: Path) -> None:
    """A reader meets one word for each thing."""
    words = EVERYWHERE | IN_PAGES | (SYNTAX if page.name != "CHANGELOG.md" else {})
    assert _found(page, _page(page), words) == []


def test_the_package_is_in_plain_english() -> None:
    """Messages, help, docstrings and comments keep to the words that are decided."""
    sources = [(path, path.read_text(encoding="utf-8")) for path in PACKAGE]
    assert [line for path, text in sources for line in _found(path, _strings(text), EVERYWHERE | SYNTAX)] == []
    assert [line for path, text in sources for line in _found(path, _comments(text), EVERYWHERE | SYNTAX)] == []


def test_docstrings_name_the_thing() -> None:
    """A docstring of the package begins with a noun or a verb, not with a clause that stands for a noun."""
    begun = [(path, found) for path in PACKAGE for found in _docstrings(path.read_text(encoding="utf-8"))]
    assert [f"{path}:{line}" for path, (line, text) in begun if NOUN_CLAUSE.match(text.strip())] == []


def test_the_tests_are_in_plain_english() -> None:
    """The sentences of the tests keep to the same words; the data that they use need not."""
    sources = [(path, path.read_text(encoding="utf-8")) for path in TESTS]
    assert [line for path, text in sources for line in _found(path, _docstrings(text), EVERYWHERE | SYNTAX)] == []
    assert [line for path, text in sources for line in _found(path, _comments(text), EVERYWHERE | SYNTAX)] == []
