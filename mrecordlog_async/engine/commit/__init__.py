"""Makes batches durable: the writer's task on the event loop, and the files on the log's thread.

| on the event loop | what it does |
|---|---|
| `writer` | takes a batch, has it planned and stored, applies it and acknowledges its calls |
| `small` | its first case: a small batch of one queue, stored without a turn of the writer's task |
| `full_disk` | stores in parts what a full disk allows |
| `upkeep` | spare, dead segments, timed syncs, the idle mark |
| `unsynced` | what a crash may take under the weaker policies |
| `thread` | the log's own thread |

Everything else belongs to the log's thread, and does not know asyncio:

| on the log's thread | what it does |
|---|---|
| `batch` | a batch as the two sides exchange it: its request, its bytes and its result |
| `journal` | the current segment: writes batches, rolls to the next one |
| `other_segments` | the segments after and before it |
| `disk_space` | how much of the disk the log may take |
| `open` | everything before the first batch |
"""
