"""Makes batches durable: the writer's task on the event loop, and the files on the log's thread.

| on the event loop | what it does |
|---|---|
| `writer` | takes a batch and has it stored; its first case, a small batch of one queue, without a turn of its task |
| `storing` | one batch: stored, applied and acknowledged, as a whole or in the parts that a full disk allows |
| `upkeep` | spare, dead segments, timed syncs, the idle mark |
| `unsynced` | what a crash may take under the weaker policies |
| `thread` | the log's own thread, and the watch over it |

Everything else belongs to the log's thread, and does not know asyncio:

| on the log's thread | what it does |
|---|---|
| `batch` | a batch as the two sides exchange it: its request, its bytes and its result |
| `journal` | the current segment: writes batches, rolls to the next one |
| `disk_space` | how much of the disk the log may take; the spare, which becomes the next segment |
| `dead_segments` | removes the segments in which nothing is live, or makes them the spare |
| `open` | everything before the first batch |
"""
