"""The logs that a stream must not read, although their servers respond (see `history`): taken out of every listing.

A log that went back is read again if the options accept that: once in a run, so that a second time is noticed.
"""

from __future__ import annotations

import logging

from mrecordlog_async.spark.positions.history import Standing, held_back
from mrecordlog_async.spark.positions.offsets import HeldBackError
from mrecordlog_async.spark.settings.options import Options

logger = logging.getLogger("mrecordlog_async.spark")


class HeldLogs:
    """Holds back the logs of one stream. sentences: why, as of the last listing."""

    def __init__(self, options: Options) -> None:
        self.sentences: list[str] = []
        self._options = options
        self._accepted: set[str] = set()  # logs that went back, of which that was accepted in this run

    def take_out(self, standing: Standing) -> set[str]:
        """Take the logs that must not be read out of *standing*; return those that are reread, because that is allowed.

        Raises:
            HeldBackError: no log is left.
        """
        again, held = set[str](), [each.sentence for each in standing.held.values()]
        for log, evidence in standing.back.items():
            server = standing.logs[log].server
            if self._accepts(log):
                again.add(log)
                logger.warning(
                    "server %r: %s; all that it holds is read again: records are read twice", server, evidence
                )
            else:
                held.append(held_back(server, evidence).sentence)
                del standing.logs[log]
        for sentence in held:
            if sentence not in self.sentences:
                logger.warning("held back: %s", sentence)
        self.sentences = held
        if held and not standing.logs:
            self._fail()
        return again

    def accept(self, again: set[str]) -> None:
        """Note that the logs in *again* are reread in this run."""
        self._accepted |= again

    def fail_at_end(self) -> None:
        """Fail a run that ends, now that it has read all but the logs that are held back. A drain says so itself."""
        if self.sentences and self._options.read_again is None:
            self._fail()

    def _fail(self) -> None:
        raise HeldBackError("; ".join(self.sentences))

    def _accepts(self, log: str) -> bool:
        options = self._options
        allowed = options.accept_went_back or (options.read_again is None and not options.fail_on_data_loss)
        return allowed and log not in self._accepted
