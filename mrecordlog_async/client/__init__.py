"""The client of the HTTP service: `RecordLogClient`, and `Producer`, which batches single records.

It needs aiohttp and msgspec (`pip install 'mrecordlog_async[client]'`), and no part of the service.
"""

from __future__ import annotations

from mrecordlog_async.client.client import RecordLogClient
from mrecordlog_async.client.producer import Producer
from mrecordlog_async.client.responses import ServiceError
from mrecordlog_async.client.retry import OutcomeUnknownError, ServiceUnreachableError

__all__ = [
    "OutcomeUnknownError",
    "Producer",
    "RecordLogClient",
    "ServiceError",
    "ServiceUnreachableError",
]
