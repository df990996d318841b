"""A loss stays refused until it is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.lake import LocalLake
from mrecordlog_async.spark.refusal import LOSS, WENT_BACK, check, is_loss, remember


@pytest.mark.parametrize(
    ("sentence", "flag", "other"),
    [
        ("queue 'q': the log ends at 70: it went back", WENT_BACK, LOSS),
        ("queue 'q': positions 3 to 9 were truncated before they were read", LOSS, WENT_BACK),
    ],
)
def test_a_loss_is_refused_until_its_own_flag_is_given(tmp_path: Path, sentence: str, flag: str, other: str) -> None:
    """Each flag accepts what it names; the first thing that is advised destroys nothing."""
    lake = LocalLake(str(tmp_path))
    check(lake, set())
    remember(lake, sentence)
    remember(lake, "something else")
    for accepted in (set[str](), {other}):
        with pytest.raises(RefusedError, match="A new output and a new checkpoint") as refused:
            check(lake, accepted)
        assert str(refused.value).startswith(sentence) and flag in str(refused.value)
        assert other not in str(refused.value)
    check(lake, {flag})
    check(lake, set())
    lake.close()


def test_a_loss_is_known_by_the_error_that_tells_it() -> None:
    """In Spark's pages about a failed query."""
    assert is_loss("[STREAM_FAILED] …\n  mrecordlog_async.spark.plan.DataLossError: queue 'q' is missing")
    assert not is_loss("[STREAM_FAILED] …\n  mrecordlog_async.spark.client.ServerDownError: no data")
