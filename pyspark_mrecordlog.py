"""Lets Spark find the data source `mrecordlog` without registration.

Spark imports every top-level module named `pyspark_*` and takes its class `DefaultSource`. It does so for all users of
an environment, and an error here would disable all Python data sources. So this module stays light, and if the data
source does not work with the installed Spark, only users of `mrecordlog` see an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["DefaultSource"]


def _refusing(cause: str) -> Any:
    """Return a data source named mrecordlog that raises *cause* when it is used; None if Spark has no data sources."""
    try:
        from pyspark.sql.datasource import DataSource
    except Exception:
        return None

    class DefaultSource(DataSource):
        """Stands in for the data source if it cannot be imported."""

        def __init__(self, options: Any) -> None:
            raise RuntimeError(
                f"the data source 'mrecordlog' does not work with this pyspark: {cause}; "
                "install a supported version with pip install 'mrecordlog_async[spark]'"
            )

        @classmethod
        def name(cls) -> str:
            """Return the name for `format(...)`."""
            return "mrecordlog"

    return DefaultSource


if TYPE_CHECKING:
    from mrecordlog_async.spark.source import RecordLogDataSource as DefaultSource
else:
    try:
        from mrecordlog_async.spark.source import RecordLogDataSource as DefaultSource
    except Exception as error:  # whatever it is: Spark must continue
        DefaultSource = _refusing(f"{type(error).__name__}: {error}")
        if DefaultSource is None:
            del DefaultSource  # Spark checks whether the module has one
