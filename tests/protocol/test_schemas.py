"""Summaries of queues on their way through JSON."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime

import msgspec

from mrecordlog_async.model import QueueSummary
from mrecordlog_async.protocol import bulk_calls, calls
from mrecordlog_async.protocol.bulk_schemas import PlanRequest, PlanStart
from mrecordlog_async.protocol.schemas import QueueResponse, response_of, summary_of

SUMMARY = QueueSummary("q", 1, 2, 3, 4, 5, 6, 7, True, datetime(2026, 11, 20, 12, 30, tzinfo=UTC))


def test_a_summary_arrives_as_it_was_sent() -> None:
    """Every field by its name, whatever the order."""
    assert all(getattr(SUMMARY, one.name) != one.default for one in fields(QueueSummary))
    sent = msgspec.json.encode(response_of(SUMMARY, 9))
    assert summary_of(msgspec.json.decode(sent, type=QueueResponse)) == SUMMARY
    assert msgspec.json.decode(sent)["opened_next"] == 9


def test_a_response_says_all_that_a_summary_has() -> None:
    """And what the service adds."""
    assert set(QueueResponse.__struct_fields__) == {one.name for one in fields(QueueSummary)} | {"opened_next"}


def test_a_request_has_only_what_is_wanted() -> None:
    """A service refuses members that it does not know: a later client asks an earlier service for what both know."""
    plan = bulk_calls.plan(PlanRequest([PlanStart("q", 1, 5)], max_records=7))
    assert plan.body == b'{"queues":[{"queue":"q","start":1,"id":5}],"max_records":7}'
    assert calls.truncate("q", 0, queue_id=None, past_consumers=False).body == b'{"position":0}'
