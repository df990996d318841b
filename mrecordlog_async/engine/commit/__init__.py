"""Makes batches durable: the writer on the event loop, and the files on the log's thread.

| on the event loop | what it does |
|---|---|
| `writer` | takes a batch, has it stored, applies and acknowledges it, in plain functions |
| `parts` | the parts in which a batch is tried that the disk refused |
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
