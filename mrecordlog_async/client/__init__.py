"""The clients of the HTTP service: `RecordLogClient` for asyncio code, `BlockingRecordLogClient` for all other code.

They need httptools and msgspec (`pip install 'mrecordlog_async[client]'`), and no part of the service.
"""

from __future__ import annotations

from mrecordlog_async.support.extras import naming

try:
    from mrecordlog_async.client.blocking import (
        BlockingConsumer,
        BlockingProducer,
        BlockingRecordLogClient,
        BlockingTail,
    )
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
