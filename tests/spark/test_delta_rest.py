"""Without payloads nothing is lost: what no column holds goes to `_rest`."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from mrecordlog_async.spark.rows.rest import rest_of, with_rest

KIND: Any = {
    "type": "struct",
    "fields": [
        {"name": "a", "type": "long"},
        {"name": "s", "type": {"type": "struct", "fields": [{"name": "b", "type": "string"}]}},
        {"name": "l", "type": {"type": "array", "elementType": {"type": "struct", "fields": []}}},
        {"name": "m", "type": {"type": "map", "keyType": "string", "valueType": "long"}},
    ],
}


@pytest.mark.parametrize(
    ("payload", "rest"),
    [
        ('{"a": 1}', None),
        ('{"a": 1, "x": [1, {"y": null}], "ä": null}', {"x": [1, {"y": None}], "ä": None}),
        ('{"s": {"b": "k", "c": 2}, "a": null}', {"s": {"c": 2}}),
        ('{"l": [{}, {"z": 1}], "m": {"k": 1}}', {"l": [{}, {"z": 1}]}),
        ('{"a": 1, "x": 1.5, "y": 12345678901234567890123}', {"x": 1.5, "y": 12345678901234567890123}),
    ],
)
def test_unknown_fields_are_kept(payload: str, rest: Any) -> None:
    """Fields that no column holds are kept, nested ones with their path."""
    found = rest_of(payload.encode(), KIND, bad=False)
    assert (None if found is None else json.loads(found)) == rest


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1} more',
        "{'a': 1}",
        '{"x": 0.1000000000000000000001}',
        '{"x": NaN}',
        '{"x": -0}',
        '{"x": 1e99999999999999999999}',
    ],
)
def test_what_python_would_change_is_kept_as_it_is(text: str) -> None:
    """Spark parses more than JSON, and Python rounds numbers: then the whole payload is kept."""
    assert rest_of(text.encode(), KIND, bad=False) == text


@pytest.mark.parametrize(
    "text", [r'{"x": "\ud800"}', r'{"\ud800": 1}', r'{"s": {"b": "k \uDC00"}}', r'{"m": {"\ud800": 1}}']
)
def test_half_of_a_surrogate_pair_is_kept(text: str) -> None:
    """JSON can escape what no text holds: Spark stores a question mark in the column, so the whole payload is kept."""
    batch = pa.RecordBatch.from_pydict({"payload": [text.encode()], "error": pa.array([None], pa.string())})
    assert with_rest(batch, KIND, "_rest").column("_rest").to_pylist() == [text]
    assert rest_of(rb'{"s": {"b": "\ud83d\ude00"}}', KIND, bad=False) is None


def test_a_payload_that_did_not_parse_is_kept() -> None:
    """As text, or as base64 if it is not text."""
    assert rest_of(b"broken", KIND, bad=True) == "broken"
    assert rest_of(b"\xff\x00", KIND, bad=True) == "base64:/wA="
    assert rest_of(b"{" * 100_000, KIND, bad=False) == "{" * 100_000
