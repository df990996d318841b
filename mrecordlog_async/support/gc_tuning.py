"""Python's cycle collector, in a process whose main work is a log.

Every call that waits is a handful of objects which the collector walks again and again and finds alive: with 10,000
callers that is half of what an append costs. What a log retains is none of its business, being tuples of bytes.
"""

from __future__ import annotations

import gc

CALM_THRESHOLD = 20_000
"""With 10,000 callers as cheap as 50,000 (2.0 µs a record; 2.7 with 10,000, 3.1 with Python's 700), and a young
collection stays shorter."""
OLDER_THRESHOLDS = (20, 100)
"""Young collections per middle-generation one, and those per full one."""


RARE_THRESHOLD = 200_000
"""For work with listings of thousands of queues, with a dozen objects for each. With 20,000, a quarter of the CPU time
of a trigger of Spark over 5,000 queues was the collector's."""


def calm_collector(threshold: int = CALM_THRESHOLD) -> None:
    """Leave what is there now alone for good, and look for cycles only after *threshold* new objects.

    For the start of a process: modules and classes are then in memory, requests are not.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(threshold, *OLDER_THRESHOLDS)
