"""The ledger of a drain: what is proven to be in the output, and which part of it the log may drop or has dropped.

The file `<checkpoint>/_mrecordlog/ledger` is replaced before the log is truncated, and again afterwards. A start reads
it before anything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mrecordlog_async.spark.checkpoint import Offset
from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.lake import OWN, Lake

LEDGER = f"{OWN}/ledger"

PerQueue = dict[str, dict[str, list[int]]]
"""server → queue → whole numbers, as JSON carries them."""


@dataclass(slots=True)
class Ledger:
    """What is proven.

    Attributes:
        batch: the last proven batch; -1 if there is none.
        due: server → queue → [id, start, stop, rows]: the output holds these positions in that many rows, and the log
            may drop them.
        released: server → queue → [id, next]: the log has confirmed that it is truncated up to there.
    """

    batch: int = -1
    due: PerQueue = field(default_factory=dict)
    released: PerQueue = field(default_factory=dict)

    @classmethod
    def read(cls, checkpoint: Lake) -> Ledger:
        """Return the ledger of *checkpoint*, an empty one if there is no file. Raises RefusedError if it is damaged."""
        content = checkpoint.read(LEDGER)
        if content is None:
            return cls()
        try:
            found: dict[str, Any] = json.loads(content)
            ledger = cls(int(found["batch"]), found["due"], found["released"])
            _check_numbers(ledger.due, 4)
            _check_numbers(ledger.released, 2)
            return ledger
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RefusedError(
                f"{checkpoint.path}/{LEDGER} is damaged ({error!r}): restore it, or use a new output and a new "
                "checkpoint, which store everything that the log still holds"
            ) from None

    def write(self, checkpoint: Lake) -> None:
        """Replace the file atomically and durably. Raises WriteFailedError."""
        checkpoint.write(LEDGER, json.dumps(asdict(self)).encode())

    def add(self, server: str, queue: str, read: tuple[int, int, int], rows: int) -> None:
        """Note that the output holds *rows* rows of *read*, (queue id, start, stop), which the log may drop."""
        queue_id, start, stop = read
        queues = self.due.setdefault(server, {})
        known = queues.get(queue)
        if known is not None and known[0] == queue_id and known[2] == start:
            queues[queue] = [queue_id, known[1], stop, known[3] + rows]
        else:  # what is still due of a queue that was deleted meanwhile can no longer be truncated
            queues[queue] = [queue_id, start, stop, rows]

    def settle(self, server: str, due: Mapping[str, list[int]], truncated: Iterable[str]) -> bool:
        """Reduce what *server* may drop to *due* without the queues in *truncated*; return False if nothing changed.

        A queue of *due* that begins at a later position than before was truncated up to there.
        """
        done, before = set(truncated), self.due[server]
        kept = {queue: at for queue, at in due.items() if queue not in done}
        released = self.released.setdefault(server, {})
        released.update({queue: [due[queue][0], due[queue][2]] for queue in done})
        released.update({queue: [at[0], at[1]] for queue, at in kept.items() if at[1] > before[queue][1]})
        if kept:
            self.due[server] = kept
        else:
            del self.due[server]
        return kept != before

    def forget(self, again: Offset) -> None:
        """Drop all entries of the queues in *again*: other records may have their positions by now."""
        for known in (self.released, self.due):
            for server, queues in again.items():
                for queue in queues:
                    known.get(server, {}).pop(queue, None)

    def forget_deleted(self, end: Offset) -> None:
        """Drop what was released of queues that the offset *end* does not have in this incarnation."""
        for server, queues in self.released.items():
            known = end.get(server, {})
            for queue in [queue for queue, (queue_id, _) in queues.items() if known.get(queue, [0])[0] != queue_id]:
                del queues[queue]


def _check_numbers(known: PerQueue, count: int) -> None:
    """Raise ValueError, TypeError or AttributeError unless every queue has *count* whole numbers."""
    for queues in known.values():
        for queue, at in queues.items():
            if len(at) != count or not all(isinstance(each, int) for each in at):
                raise ValueError(f"{queue!r} has {at!r}")
