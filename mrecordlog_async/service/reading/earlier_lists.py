"""Finds the changes since an earlier list of queues: a client that lists often receives only those.

An earlier list is known by its ETag. Of the last few that were requested with `changed_since`, a fingerprint of each
queue is kept, about 60 bytes. A list that is not known, or not any more, is sent as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrecordlog_async.log import MultiRecordLog

LISTS_KEPT = 64
FINGERPRINTS_KEPT = 200_000
"""Lists and fingerprints in them that are kept at most, 12 MB. Then the one that was used longest ago goes."""

QUEUES_MAX = 10_000
"""Longer lists are sent as a whole. Fingerprinting more queues than this would block the event loop for over 5 ms."""


class ListChanges(NamedTuple):
    """Changes since an earlier list."""

    names: list[str]  # the queues that were created, recreated or changed
    deleted: list[str]  # the names of that list that no queue has now


class _List(NamedTuple):
    """A list that was sent. before: the tag of the list whose client received it. fingerprints: by queue."""

    before: str
    fingerprints: dict[str, int]


class EarlierLists:
    """The lists that the clients of one log have last received, and those before: a response may be lost."""

    def __init__(self) -> None:
        self._lists: dict[str, _List] = {}  # by tag; the one used last is the last

    def __len__(self) -> int:
        return len(self._lists)

    def changes(
        self, log: MultiRecordLog, names: Sequence[str], tag: str, version: int, since: str
    ) -> ListChanges | None:
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
        now, earlier = log.inspection.fingerprints(names), self._lists.pop(since, None)
        if earlier is not None:
            self._lists.pop(earlier.before, None)  # its client has received the next one
            self._lists[since] = earlier
        if (
            log.inspection.version == version
        ):  # otherwise these fingerprints are newer than the list that a client knows as *tag*
            self._lists[tag] = _List(since, now)
        self._forget()
        if earlier is None:
            return None
        changed = [name for name, mark in now.items() if earlier.fingerprints.get(name) != mark]
        return ListChanges(changed, [name for name in earlier.fingerprints if name not in now])

    def _forget(self) -> None:
        kept = sum(len(each.fingerprints) for each in self._lists.values())
        while len(self._lists) > LISTS_KEPT or kept > FINGERPRINTS_KEPT:
            oldest = next(iter(self._lists))
            kept -= len(self._lists.pop(oldest).fingerprints)
