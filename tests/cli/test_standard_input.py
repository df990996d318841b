"""Standard input, read by a thread: lines as they arrive, and no trace of the thread when the command ends."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

import pytest

from mrecordlog_async.cli.streams import read_input, read_lines, read_text_lines


def reading(patch: pytest.MonkeyPatch, read: Callable[[], bytes]) -> None:
    """Let *read* be what reads standard input."""
    patch.setattr(os, "read", lambda descriptor, size: read())


async def test_lines_may_begin_and_end_in_any_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the pieces are cut, empty lines and a last one without a newline included."""
    text = "one\n\ntwo é\nthree\n\n".encode()
    for cut in range(1, len(text)):
        for end in (text, text[:-2]):
            pieces = [end[at : at + cut] for at in range(0, len(end), cut)]
            with monkeypatch.context() as patch:
                reading(patch, iter([*pieces, b""]).__next__)
                found = [line async for lines in read_lines() for line in lines]
            assert found == end.removesuffix(b"\n").split(b"\n")


async def test_text_is_utf_8_and_other_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command refuses the line, and knows its number."""
    reading(monkeypatch, iter(["é\n".encode(), b"\xff\n", b""]).__next__)
    assert [line async for line in read_text_lines()] == ["é", "\udcff"]


def test_input_that_comes_after_the_command_has_ended_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads it ends without a traceback."""
    ended, failures = threading.Event(), list[object]()
    monkeypatch.setattr(threading, "excepthook", failures.append)

    def read() -> bytes:
        ended.wait()
        return b"late"

    async def one_piece() -> None:
        pieces = iter([b"first"])
        reading(monkeypatch, lambda: next(pieces, None) or read())
        async for piece in read_input():
            assert piece == b"first"
            return

    asyncio.run(one_piece())
    (thread,) = [each for each in threading.enumerate() if each.name == "standard input"]
    ended.set()
    thread.join()
    assert failures == []
