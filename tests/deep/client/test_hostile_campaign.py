"""Proxies that do what proxies do, at random, in front of everything that appends and reads."""

from __future__ import annotations

from pathlib import Path

from tests.deep.client.hostile_campaign import attack


async def test_a_campaign_of_hostile_proxies_loses_doubles_and_misreports_nothing(tmp_path: Path) -> None:
    """Requests and responses are lost, late, repeated and replayed. Only what has no position may be doubled."""
    verdicts = await attack(tmp_path, 60, 7, kills=False)
    wrong = {queue: (one.lost, one.misreported, one.not_consumed, one.doubled) for queue, one in verdicts.items()}
    assert wrong.pop("plain")[:3] == (0, 0, 0)
    assert set(wrong.values()) == {(0, 0, 0, 0)}
