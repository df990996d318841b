"""The clients of the HTTP service: `RecordLogClient` for asyncio code, `BlockingRecordLogClient` for all other code.

It needs aiohttp and msgspec (`pip install 'mrecordlog_async[client]'`), and no part of the service.
"""

from __future__ import annotations

from mrecordlog_async.client.blocking import BlockingConsumer, BlockingProducer, BlockingRecordLogClient, BlockingTail
from mrecordlog_async.client.client import RecordLogClient
from mrecordlog_async.client.consumer import Consumer
from mrecordlog_async.client.producer import Producer
from mrecordlog_async.client.responses import ServiceError
from mrecordlog_async.client.retry import OutcomeUnknownError, ServiceUnreachableError
from mrecordlog_async.client.tail import Tail

__all__ = [
    "BlockingConsumer",
    "BlockingProducer",
    "BlockingRecordLogClient",
    "BlockingTail",
    "Consumer",
    "OutcomeUnknownError",
    "Producer",
    "RecordLogClient",
    "ServiceError",
    "ServiceUnreachableError",
    "Tail",
]
