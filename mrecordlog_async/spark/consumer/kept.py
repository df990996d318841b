"""Queues that keep records which a stream or a drain releases: one of their consumers has not acknowledged them."""

from __future__ import annotations

import logging

from mrecordlog_async.spark.services.responses import Truncated

logger = logging.getLogger("mrecordlog_async.spark")


class KeptRecords:
    """Logs which queues were not truncated as far as a stream has stored them. *advice*: how to share a queue."""

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._expected = False
        self._logged = set[tuple[str, str]]()  # (server, queue)

    def expect(self) -> None:
        """Log no warning about consumers that are behind: another stream of the same job has logged it."""
        self._expected = True

    def report(self, server: str, outcome: Truncated) -> None:
        """Log that *server* did not truncate a queue; for a consumer that is behind only once, as that may last."""
        if outcome.status != "consumer_behind":
            logger.warning("queue %r of %r was not truncated: %s", outcome.queue, server, outcome.status)
        elif not self._expected and (server, outcome.queue) not in self._logged:
            self._logged.add((server, outcome.queue))
            logger.warning("server %r keeps records of %s. %s", server, outcome.detail, self._advice)
