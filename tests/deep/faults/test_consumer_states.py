"""Consumers, options and seals after crashes and faults."""

from __future__ import annotations

import pytest

from mrecordlog_async import LogFullError
from tests.faults.consumer_histories import CONSUMER_CASES


@pytest.mark.parametrize("name", ["reserve of consumers", "consumers below a limit"])
def test_the_reserve_is_for_what_truncates(name: str) -> None:
    """On a full disk, acknowledgements that remove records always succeed, attaching does while half is left."""
    calls = CONSUMER_CASES[name].run(moments=False).model.calls
    full = next(call.number for call in calls if call.outcome == "absent")
    later = [call for call in calls if call.number > full]
    assert {call.outcome for call in later if call.kind == "acknowledge" and call.queue == "kept"} == {"answered"}
    refused = [call for call in later if call.kind == "acknowledge" and call.queue == "other"]
    assert any(isinstance(call.error, LogFullError) for call in refused)
    assert {call.outcome for call in later if call.kind == "attach"} == {"answered", "absent"}
    assert {call.outcome for call in later if call.kind == "seal"} == {"answered"}
    assert calls[-1].outcome == "answered"
