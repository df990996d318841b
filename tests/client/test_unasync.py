from __future__ import annotations

import pytest

from tests.client.unasync import GENERATED, blocking, generated


def test_the_blocking_client_is_the_asyncio_client_without_asyncio() -> None:
    """After a change of the asyncio client, run `python -m tests.client.unasync`."""
    found = generated()
    assert sorted(found) == sorted(GENERATED.glob("*.py"))
    for path, text in found.items():
        assert path.read_text() == text, f"{path} is not up to date: run python -m tests.client.unasync"
        assert "await" not in text and "asyncio." not in text


def test_a_sentence_that_is_not_there_any_more_is_noticed() -> None:
    """Otherwise the documentation of the blocking client would speak of tasks."""
    with pytest.raises(ValueError, match="the text has no"):
        blocking("tail", "")
