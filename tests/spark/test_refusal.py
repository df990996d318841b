"""A loss is refused until the user accepts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.checkpoints.refusal import LOSS, REFUSED, WENT_BACK, check, is_loss, remember

POSITION = {"a": {"q": [1, 70], "it's, queue 'x': ": [2, 9], "other": [3, 3]}}


@pytest.mark.parametrize(
    ("sentence", "flag", "other"),
    [
        ("server 'a', queue 'q': the log ends at 70: it went back", WENT_BACK, LOSS),
        ("queue 'q': positions 3 to 9 were truncated before they were read", LOSS, WENT_BACK),
        ("server 'it went back', queue 'it\\'s \"went back\"': it was deleted; positions 3 to 9", LOSS, WENT_BACK),
    ],
)
def test_a_loss_is_refused_until_its_own_flag_is_given(tmp_path: Path, sentence: str, flag: str, other: str) -> None:
    """Each flag accepts its own kind of loss; the advice begins with what changes nothing."""
    lake = LocalLake(str(tmp_path))
    check(lake, set(), POSITION)
    remember(lake, sentence)
    remember(lake, "something else")
    for accepted in (set[str](), {other}):
        with pytest.raises(RefusedError, match="A new output and a new checkpoint") as refused:
            check(lake, accepted, POSITION)
        assert str(refused.value).startswith(sentence) and flag in str(refused.value)
        assert other not in str(refused.value)
    check(lake, {flag}, POSITION)
    check(lake, set(), {"a": {"q": [1, 0]}})
    lake.close()


def test_what_went_back_is_named_and_stays_refused_until_it_was_read_again(tmp_path: Path) -> None:
    """A start that is killed before the checkpoint moves on leaves the refusal in place."""
    lake = LocalLake(str(tmp_path))
    names = ("q", "it's, queue 'x': ")
    remember(lake, "; ".join(f"server {'a'!r}, queue {queue!r}: 70, but 50: it went back" for queue in names))
    again = {"a": {queue: POSITION["a"][queue] for queue in names}}
    for _ in range(2):
        assert check(lake, {WENT_BACK}, POSITION) == again
        with pytest.raises(RefusedError):
            check(lake, set(), POSITION)
    moved = {"a": {queue: [queue_id, 0] for queue, (queue_id, _) in POSITION["a"].items()}}
    assert check(lake, set(), moved) == {}
    assert check(lake, set(), POSITION) == {}
    lake.close()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"why": "x"}'])
def test_a_damaged_refusal_stays_a_refusal(tmp_path: Path, content: bytes) -> None:
    """A damaged refusal still refuses every start."""
    lake = LocalLake(str(tmp_path))
    remember(lake, "x")
    (tmp_path / REFUSED).write_bytes(content)
    with pytest.raises(RefusedError, match=r"refused is damaged.* A new output and a new checkpoint"):
        check(lake, {LOSS, WENT_BACK}, POSITION)
    lake.close()


def test_queues_that_are_found_later_are_accepted_together(tmp_path: Path) -> None:
    """If a running query finds one queue of a restored log and the next start another, both are accepted together."""
    lake = LocalLake(str(tmp_path))
    remember(lake, "server 'a', queue 'q': it went back")
    assert check(lake, {WENT_BACK}, POSITION) == {"a": {"q": [1, 70]}}
    for _ in range(2):
        remember(lake, "server 'a', queue 'q': x: it went back; server 'a', queue 'other': it went back")
    with pytest.raises(RefusedError) as refused:
        check(lake, set(), {"a": {"q": [1, 0], "other": [3, 3]}})
    assert str(refused.value).count("'other'") == 1
    assert check(lake, {WENT_BACK}, POSITION) == {"a": {"q": [1, 70], "other": [3, 3]}}
    lake.close()


def test_a_loss_is_recognised_by_its_error_class() -> None:
    """A loss is recognised by its error class in Spark's text about a failed query."""
    assert is_loss("[STREAM_FAILED] …\n  mrecordlog_async.spark.plan.DataLossError: queue 'q' is missing")
    assert not is_loss("[STREAM_FAILED] …\n  mrecordlog_async.spark.services.connection.ServerDownError: no data")
