"""Argument checks: what callers pass is checked here, once, when the method is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mrecordlog_async.options import QueueOptions, check_type

Payload = bytes | bytearray | memoryview
"""Any bytes-like object. What is not `bytes` is copied when the method is called."""


def copy_payload(payload: object) -> bytes:
    """Return the bytes of any bytes-like object; raise TypeError for anything else."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str):
        raise TypeError("payload must be bytes, not str; encode it first")
    try:
        return memoryview(payload).tobytes()  # type: ignore[arg-type]  # any object with a buffer; TypeError otherwise
    except TypeError:
        raise TypeError(f"payload must be a bytes-like object, not {type(payload).__name__}") from None


def check_payloads(payloads: Iterable[Payload]) -> Iterable[Payload]:
    """Return *payloads*; raise TypeError for a single payload, each byte of which would become a record."""
    if isinstance(payloads, str | bytes | bytearray | memoryview):
        raise TypeError("append_records takes an iterable of payloads, not a single one; use append_record")
    return payloads


def check_queues(queues: Iterable[str] | Mapping[str, QueueOptions]) -> dict[str, QueueOptions | None]:
    """Return the names with their options; raise TypeError for a single name: each letter would become a queue."""
    if isinstance(queues, str | bytes):
        raise TypeError(f"queues takes an iterable of names, not a single one; pass [{queues!r}]")
    declared = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues)
    for queue, options in declared.items():
        if options is not None:
            check_type(f"queues[{queue!r}]", options, QueueOptions)
    return declared
