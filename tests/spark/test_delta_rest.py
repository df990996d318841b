"""Without payloads nothing is lost: what no column holds goes to `_rest`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mrecordlog_async.spark.delta.rest import rest_of

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


@pytest.mark.parametrize("text", ['{"a": 1} more', "{'a': 1}", '{"x": 0.1000000000000000000001}', '{"x": NaN}'])
def test_what_python_would_change_is_kept_as_it_is(text: str) -> None:
    """Spark parses more than JSON, and Python rounds numbers: then the whole payload is kept."""
    assert rest_of(text.encode(), KIND, bad=False) == text


def test_a_payload_that_did_not_parse_is_kept() -> None:
    """As text, or as base64 if it is not text."""
    assert rest_of(b"broken", KIND, bad=True) == "broken"
    assert rest_of(b"\xff\x00", KIND, bad=True) == "base64:/wA="
    assert rest_of(b"{" * 100_000, KIND, bad=False) == "{" * 100_000
