"""The CPU time of a process and of everything that it has started, from /proc."""

from __future__ import annotations

from collections.abc import Iterator
from os import sysconf
from pathlib import Path

TICKS_PER_SECOND = sysconf("SC_CLK_TCK")

Cpu = dict[str, float]
"""Kind of process → CPU seconds."""


def cpu_of(pid: int) -> Cpu:
    """Return the CPU seconds of a process and its descendants, including children that have ended, by kind.

    Kinds: "Java", "Python of Spark", "service", and "driver" for the rest.
    """
    found: Cpu = {}
    for each in tree(pid):
        try:
            stat = Path(f"/proc/{each}/stat").read_text().rpartition(") ")[2].split()
            command = Path(f"/proc/{each}/cmdline").read_text()
        except OSError:  # it has ended
            continue
        kind = _kind(command.split("\0"))
        found[kind] = found.get(kind, 0.0) + sum(map(int, stat[11:15])) / TICKS_PER_SECOND
    return found


def tree(pid: int) -> list[int]:
    """Return *pid* and its descendants."""
    found = [pid]
    for each in found:
        found += _children(each)
    return found


def _children(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, children.read_text().split())
        except OSError:  # the thread has ended
            continue


def _kind(words: list[str]) -> str:
    if words[0].endswith("java"):
        return "Java"
    if any(word.startswith("pyspark.") or word.endswith("spark.daemon") for word in words):
        return "Python of Spark"
    return "service" if "serve" in words else "driver"
