"""The comparison of a log larger than its memory with one in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.__main__ import main


@pytest.mark.parametrize("queues", [8, 1_000])
def test_both_logs_store_and_read_everything(queues: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Few and many queues, records that left memory and those that did not: each has its line, then the ratios."""
    words = f"beyond-memory --directory {tmp_path} --memory 8 --total 24 --segment 2 --rounds 1 --queues {queues}"
    assert main(words.split()) == 0
    _, beyond, within, *ratios = capsys.readouterr().out.splitlines()
    assert '"replayed MB"' in beyond
    assert '"replayed MB"' not in within
    assert '"refused": 0' in beyond and '"refused": 0' in within
    assert ratios[0].startswith("stored MB/s: ")
    assert not list(tmp_path.iterdir())
