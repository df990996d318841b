"""Logs of a Python program to a queue, by the OTLP exporter of the OpenTelemetry SDK.

    pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http

A record of the queue is one request of the exporter: an ExportLogsServiceRequest in protobuf, with many log records.
"""

import logging

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

exporter = OTLPLogExporter(
    endpoint="http://127.0.0.1:8080/v1/queues/otel/records?create=1", compression=Compression.Gzip
)
provider = LoggerProvider()
provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
logging.getLogger().addHandler(LoggingHandler(logger_provider=provider))

logging.getLogger("app").warning("the coffee is cold")
provider.shutdown()
