"""Patterns of names: which names one stands for. Only `*` is special in it: it stands for any characters, or none.

A pattern is compared by hand, part by part from the left. Each part is searched for once, so the time is linear in the
name and the pattern, whatever they are; a regular expression may go back once for each star and never end.
"""

from __future__ import annotations

ANY = "*"
"""Stands for any characters in a pattern. A queue argument that contains it is a pattern."""


def is_pattern(queue: str) -> bool:
    """Return whether *queue* stands for all queues whose names match it."""
    return ANY in queue


def matches(pattern: str, name: str) -> bool:
    """Return whether *name* matches *pattern*."""
    beginning, *middle = pattern.split(ANY)
    if not middle:
        return name == pattern
    ending = middle.pop()
    at, end = len(beginning), len(name) - len(ending)
    if at > end or not name.startswith(beginning) or not name.endswith(ending):
        return False
    for part in middle:
        # The first place is the right one: it leaves the most to the parts after it.
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def beginning_of(pattern: str) -> str:
    """Return how every name that matches *pattern* begins: its characters before the first star."""
    return pattern.partition(ANY)[0]
