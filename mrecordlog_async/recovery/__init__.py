"""Reading a log: from the bytes of a directory to the queues in memory. Blocking; no asyncio here.

| module | what it does |
|---|---|
| `recovery` | reads a log once, oldest live segment first; with its lock, or without it while a writer runs |
| `segment_files` | opens segments and reads their headers, with or without the lock |
| `replay` | applies the batches of one segment after another to the queues, and remembers which segments failed |
| `torn_or_damaged` | decides what bytes that are not a batch mean |
| `recovered` | the result |
| `cleanup` | makes a recovered log ready for its next batch; needs the lock |
| `live_reader` | reads a log again while its writer is faster than the reader |
| `follower` | reads what a writer added since |
| `positions` | replays a log for its positions and for where its records are, without payloads |
| `segment_reader` | reads segments from an offset on, and takes what is wanted of them: records of such places |
| `beyond_memory` | opens a log that is larger than memory, by its gathered files |
| `gathered_reader` | reads runs from gathered files, in pieces that neighbouring reads share |
| `gathering` | makes gathered files, and checks whether one belongs to its segment |
"""
