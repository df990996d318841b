"""Which segments are needed: the oldest is known at once, however many there are."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from mrecordlog_async.memory.queue import Queue, SegmentPins
from mrecordlog_async.model import Run


def test_oldest_is_the_smallest_of_what_is_pinned() -> None:
    """After any adding and dropping, in any order, it is what a look at all of them would give."""
    rng = random.Random(7)
    pins, pinned = SegmentPins(), Counter[int]()
    for _ in range(20_000):
        segment = rng.randrange(50)
        if rng.random() < 0.5 and pinned[segment]:
            pins.drop(segment)
            pinned[segment] -= 1
        elif rng.random() < 0.7:
            pins.add(segment, 1)
            pinned[segment] += 1
        if rng.random() < 0.3:
            assert pins.oldest() == min((number for number, count in pinned.items() if count), default=None)
        if rng.random() < 0.01:
            for number in list(pinned.elements()):
                pins.drop(number)
            pinned.clear()
    assert len(pins._oldest) <= 50, "a segment that is dropped and needed again is kept once"


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the least CPU time of a few runs."""
    times = []
    for _ in range(5):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return min(times)


def test_oldest_costs_the_same_with_many_segments() -> None:
    """It is asked several times a batch: ten thousand live segments must cost an append nothing."""

    def asked(segments: int) -> float:
        pins = SegmentPins()
        for segment in range(segments):
            pins.add(segment, 1)
        return cpu_seconds(lambda: [pins.oldest() for _ in range(20_000)])

    assert asked(10_000) < 200 * asked(1)  # a look at all of them would be a thousand times dearer


def test_truncating_many_segments_costs_what_they_are() -> None:
    """A queue that leaves forty times as many segments at once takes about forty times as long, not 1,600 times."""

    def truncated(segments: int) -> float:
        def build() -> Queue:
            queue = Queue(1, "q", SegmentPins())
            for segment in range(segments):
                queue.append(segment, Run.of(segment, [b"x"]))
            return queue

        queues = [build() for _ in range(5)]
        return cpu_seconds(lambda: queues.pop().truncate(segments - 2))

    assert truncated(20_000) < 400 * truncated(500)
