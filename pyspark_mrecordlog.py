"""Lets Spark find the data source `mrecordlog` without registration.

Spark imports every top-level module named `pyspark_*` and takes its class `DefaultSource`. It does so for all users of
an environment, and an error here would disable all Python data sources. So this module imports nothing of the package
until the data source is used (0.2 s), and only users of `mrecordlog` see an error if it does not work with their Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["DefaultSource"]

if TYPE_CHECKING:
    from mrecordlog_async.spark.data_source import RecordLogDataSource as DefaultSource
else:
    try:
        from pyspark.sql.datasource import DataSource
    except Exception:  # whatever it is: a Spark without Python data sources asks for none
        __all__ = []
    else:

        class DefaultSource(DataSource):
            """The name of the data source; using it makes the data source itself."""

            def __new__(cls, options: Any) -> Any:
                """Return the data source. Raises RuntimeError if the installed pyspark is too old for it."""
                try:
                    from mrecordlog_async.spark.data_source import RecordLogDataSource
                except Exception as error:
                    raise RuntimeError(
                        f"the data source 'mrecordlog' does not work with this pyspark: {type(error).__name__}: "
                        f"{error}; install a supported version with pip install 'mrecordlog_async[spark]'"
                    ) from error
                return RecordLogDataSource(options)

            @classmethod
            def name(cls) -> str:
                """Return the name for `format(...)`."""
                return "mrecordlog"
