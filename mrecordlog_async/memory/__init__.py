"""The retained records: queues of runs. Pure: knows nothing of files.

Memory is what replaying the log records gives. A live append and recovery both end in `Queues.apply`, so a reader sees
what reopening would show.

| module | what it holds |
|---|---|
| `queues` | all queues of a log, how log records change them, and when their loose records are settled |
| `queue` | one queue: its positions, its segments, its last append |
| `stores` | what a queue asks of the place of its records |
| `store` | that place in an open log: runs, open ones, and loose records |
| `pieces`, `gapped` | runs, many of them by column; runs with gaps |
| `collected` | the records of one segment, for a gathered file |
| `spilling` | records of whole segments leave memory, in steps |
| `loose` | single records that stay in the block they arrived in |
| `times` | when records were stored, where it changes; `stored_times` reads it of a queue |
| `consumers` | the consumers of a queue, and the rules that create them |
| `reads` | what readers of an open log and of a directory ask |
| `cutting` | the first records of a queue, as many as limits allow |
| `searches` | searches through all queues, in steps |
| `settings` | options and consumers as callers see them |
"""
