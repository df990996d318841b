"""What a client may do after it has lost the response to a call."""

from __future__ import annotations

import pytest

from mrecordlog_async.model import Run
from mrecordlog_async.protocol import calls
from mrecordlog_async.protocol.attempts import Repeat
from mrecordlog_async.protocol.calls import ServiceCall

CHANGES = [
    (calls.create_queue("q", exist_ok=False, options=None), Repeat.NEVER),
    (calls.create_queue("q", exist_ok=True, options=None), Repeat.FREELY),
    (calls.delete_queue("q", queue_id=None, past_consumers=False), Repeat.NEVER),
    (calls.delete_queue("q", queue_id=7, past_consumers=False), Repeat.RECOGNIZED),
    (calls.seal_queue("q", queue_id=None), Repeat.RECOGNIZED),
    (calls.append("q", None, [b"a"], create=False), Repeat.NEVER),
    (calls.append("q", 0, [b"a"], create=False), Repeat.RECOGNIZED),
    (calls.append_runs("q", None, [Run.of(0, [b"a"])], create=False), Repeat.NEVER),
    (calls.append_runs("q", 0, [Run.of(0, [b"a"])], create=False), Repeat.RECOGNIZED),
    (calls.append_new("q", 0, [b"a"]), Repeat.RECOGNIZED),
    (calls.create_consumer("q", "c", start=None, exist_ok=False), Repeat.NEVER),
    (calls.create_consumer("q", "c", start=None, exist_ok=True), Repeat.FREELY),
    (calls.delete_consumer("q", "c"), Repeat.NEVER),
]


@pytest.mark.parametrize(("call", "repeat"), CHANGES)
def test_a_change_is_sent_again_only_if_that_changes_nothing_more(call: ServiceCall[object], repeat: Repeat) -> None:
    """A second request could store a record twice, or delete what was created in between."""
    assert call.repeat is repeat


@pytest.mark.parametrize(("name", "segment"), [(".", "%2E"), ("..", "%2E%2E"), ("...", "..."), ("a/b", "a%2Fb")])
def test_a_name_is_one_segment_of_the_path(name: str, segment: str) -> None:
    """A log of an older version may have a queue with a name that clients and proxies would remove from the path."""
    assert calls.queue_summary(name).path == f"/v1/queues/{segment}"
    assert calls.consumer_path("q", name) == f"/v1/queues/q/consumers/{segment}"
