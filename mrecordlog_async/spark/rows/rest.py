"""Fields without a column, where payloads are not stored: unknown fields, and payloads that do not parse.

    {"customer": "ada", "amount": 3, "coupon": "X"}   with the columns customer, amount   →   {"coupon": "X"}

Nothing is dropped. A struct's unknown fields are kept with their path. An array or map whose elements have unknown
fields is kept as a whole, and so is a payload that did not parse, or with numbers that Python would change, or with
half of a surrogate pair. A payload that is not UTF-8 is kept as base64, after the word `base64:`.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

Kind = Any
"""A type as Spark's JSON describes it: a name, or a dict with `type`."""


class _ChangedError(Exception):
    """A number is not the same after Python has read and written it."""


def with_rest(batch: pa.RecordBatch, kind: Kind, name: str) -> pa.RecordBatch:
    """Return *batch* with the column *name* instead of `payload`.

    Args:
        batch: rows with the columns payload and error.
        kind: the struct of the columns that were parsed.
        name: of the new column.
    """
    payloads, errors = batch.column("payload").to_pylist(), batch.column("error")
    bad = errors.is_valid().to_pylist()
    rest = pa.array(
        [rest_of(payload, kind, bad=wrong) for payload, wrong in zip(payloads, bad, strict=True)], pa.string()
    )
    return batch.drop_columns(["payload"]).append_column(name, rest)


def rest_of(payload: bytes | None, kind: Kind, *, bad: bool) -> str | None:
    """Return what *kind* does not hold of *payload*; None if it holds everything. bad: it did not parse."""
    if payload is None:
        return None
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(payload).decode()
    if bad:
        return text
    try:
        value = json.loads(text, parse_int=_exact_int, parse_float=_exact, parse_constant=_constant)
        if "\\u" in text:
            _text(value).encode()  # half of a surrogate pair: no UTF-8, and Spark stores a question mark for it
        rest = _rest(value, kind)
    except (ValueError, RecursionError, _ChangedError):
        return text  # Spark accepts more than JSON: text after the object, or single quotes
    return None if rest is None else _text(rest)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _rest(value: Any, kind: Kind) -> Any:
    """Return the part of *value* that a column of this type does not hold; None if it holds everything."""
    name = kind["type"] if isinstance(kind, dict) else kind
    if isinstance(value, dict) and name == "struct":
        fields = {each["name"]: each["type"] for each in kind["fields"]}
        found = {key: (_rest(each, fields[key]) if key in fields else each) for key, each in value.items()}
        rest = {key: each for key, each in found.items() if each is not None or key not in fields}
        return rest or None
    if isinstance(value, list) and name == "array":
        return value if any(_rest(each, kind["elementType"]) is not None for each in value) else None
    if isinstance(value, dict) and name == "map":
        return value if any(_rest(each, kind["valueType"]) is not None for each in value.values()) else None
    return None


def _exact_int(text: str) -> int:
    if text == "-0":
        raise _ChangedError
    return int(text)


def _exact(text: str) -> float:
    value = float(text)
    try:
        changed = Decimal(repr(value)) != Decimal(text)
    except InvalidOperation:  # an exponent that not even a decimal has
        changed = True
    if changed:
        raise _ChangedError
    return value


def _constant(text: str) -> float:
    raise _ChangedError
