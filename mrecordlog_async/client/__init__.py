"""The clients of the HTTP service: `RecordLogClient` for asyncio code, `BlockingRecordLogClient` for all other code.

It needs aiohttp and msgspec (`pip install 'mrecordlog_async[client]'`), and no part of the service.
"""

from __future__ import annotations

from mrecordlog_async.support.extras import naming

try:
    from mrecordlog_async.client._sync.client import BlockingRecordLogClient
    from mrecordlog_async.client._sync.consumer import BlockingConsumer
    from mrecordlog_async.client._sync.tail import BlockingTail
    from mrecordlog_async.client.blocking import BlockingProducer
    from mrecordlog_async.client.client import RecordLogClient
    from mrecordlog_async.client.consumer import ClientConsumer as Consumer
    from mrecordlog_async.client.producer import Producer
    from mrecordlog_async.client.tail import ClientTail as Tail
    from mrecordlog_async.protocol.attempts import OutcomeUnknownError, ServiceUnreachableError
    from mrecordlog_async.protocol.responses import ServiceError
except ModuleNotFoundError as error:
    raise naming(error, "client") from None

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
