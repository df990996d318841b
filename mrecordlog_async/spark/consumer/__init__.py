"""A stream as a consumer of its queues: it acknowledges what its checkpoint has committed, instead of truncating.

The checkpoint alone says what is stored, the consumer alone what the logs may drop. So several streams and workers
share a queue: one that keeps records until they are acknowledged drops what all of its consumers have acknowledged.

    holder     attaches, compares consumer and checkpoint, acknowledges
    committed  what a stream calls: acknowledges as a consumer, or truncates
"""

from __future__ import annotations
