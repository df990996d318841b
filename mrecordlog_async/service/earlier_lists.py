"""What has changed since an earlier list of queues: a client that lists often receives only that.

An earlier list is known by its ETag. Of the last few that were requested with `changed_since`, a fingerprint of each
queue is kept, about 60 bytes. A list that is not known, or not any more, is sent as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrecordlog_async.memory.reads import QueueReader

LISTS_KEPT = 8
"""So many lists are kept. A client that lists less often than several others receives whole lists."""

QUEUES_MAX = 10_000
"""Longer lists are sent as a whole. To take the fingerprints of so many queues holds up the event loop for 5 ms."""


class Changes(NamedTuple):
    """What changed since an earlier list.

    Attributes:
        names: the queues that were created, recreated or changed.
        deleted: the names of that list that no queue has now.
    """

    names: list[str]
    deleted: list[str]


class EarlierLists:
    """The lists that the clients of one log have last received."""

    def __init__(self) -> None:
        self._lists: dict[str, dict[str, int]] = {}  # tag → queue → its fingerprint; the last one used is the last

    def changes(self, log: QueueReader, names: Sequence[str], tag: str, version: int, since: str) -> Changes | None:
        """Return what has changed since the list with the tag *since*, and keep what is listed now.

        Args:
            log: the log.
            names: all its queues, sorted.
            tag: the tag of the list that is about to be sent.
            version: the version of the log that *tag* stands for.
            since: the tag of the earlier list.

        Returns:
            The changes; None if the list must be sent as a whole.
        """
        if len(names) > QUEUES_MAX:
            return None
        now, earlier = log.fingerprints(names), self._lists.pop(since, None)
        if earlier is not None:
            self._lists[since] = earlier  # its client requests it again if the response is lost
        if log.version == version:  # otherwise these fingerprints are newer than the list that a client knows as *tag*
            self._lists[tag] = now
        while len(self._lists) > LISTS_KEPT:
            del self._lists[next(iter(self._lists))]
        if earlier is None:
            return None
        changed = [name for name, mark in now.items() if earlier.get(name) != mark]
        return Changes(changed, [name for name in earlier if name not in now])
