"""The session and the services of the pipeline's tests."""

from tests.spark.conftest import collect_ignore_glob, drains_closed, new_service, queries_closed, service, spark, until

__all__ = ["collect_ignore_glob", "drains_closed", "new_service", "queries_closed", "service", "spark", "until"]
