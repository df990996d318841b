"""`mrecordlog bench`: what this log does on your disk, next to what the disk does.

The rules that all workloads keep:

1. Everything is a ratio taken in one run. Rounds alternate: a stretch of the log, then the raw disk with the very same
   writes and syncs (`raw`), then whatever it is compared with; a ratio is the median of the rounds' ratios. Absolute
   numbers stand beside it and belong to the machine and the hour.
2. The raw disk is one thread that calls pwrite and fdatasync with the same number of bytes in the same order, on a
   file whose blocks exist. No log can be faster; the ratio says what this one costs above the disk. Large writes are
   also held against blocks that are reserved but were never written, as those of a growing log are.
3. What was acknowledged is read back from the files by another reader and compared: a row whose records are not all
   there is an error, not a number.
4. Callers are coroutines that wait for each answer before they send the next record. The clock starts after a short
   stretch that is thrown away, and stops before the last callers are let go.
5. Each workload runs in a process of its own, so none inherits another's memory.

A workload is a module in `workloads` with `async def run(bench) -> list[Row]`; `suite` has the table of them. Peers
(other stores, where they are installed) are modules in `peers`. `latency`, `report` and `chart` draw; they know
nothing of files or logs.
"""
