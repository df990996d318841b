"""Lets Spark find the data source `mrecordlog` without registration.

Spark imports every top-level module called `pyspark_*` and takes its class `DefaultSource`. It does so for all users of
an environment, so this module stays light.
"""

from mrecordlog_async.spark.source import RecordLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
