"""The retained records: queues of runs. Pure: knows nothing of files.

Memory is what replaying the log records gives. A live append and recovery both end in `Queues.apply`, so a reader sees
what reopening would show.

| module | what it holds |
|---|---|
| `queues` | all queues of a log, and how log records change them |
| `queue` | one queue: its positions, its segments, its last append |
| `stores` | what a queue asks of the place of its records |
| `store` | that place in an open log: runs that never change, and a tail that grows |
| `runs`, `gapped` | runs, and runs with gaps: cut, as callers get them, and their checksum |
| `collected` | the records of one segment, for a gathered file |
| `spilling` | records of whole segments leave memory, in steps |
| `times` | when records were stored, where it changes; `stored_times` reads it of a queue |
| `consumers` | the consumers of a queue, and the rules that create them |
| `reads` | what readers of an open log and of a directory ask |
| `cutting` | the first records of a queue, as many as limits allow |
| `searches` | searches through all queues, in steps |
| `settings` | options and consumers as callers see them |
"""
