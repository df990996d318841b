"""`mrecordlog bench`: measure this log on your disk, next to the disk alone.

The rules that every workload keeps:

1. Every ratio is taken within one run. Rounds alternate: the log for a short time, then the raw disk with exactly the
   same writes and syncs (`raw`); a ratio is the median of the rounds' ratios. Absolute figures depend on the machine
   and on the hour.
2. The raw disk is one thread that calls pwrite and fdatasync with the same number of bytes in the same order, on a
   file whose blocks exist; what pads a direct write to whole blocks is left out. No log can be faster; the ratio shows
   what this one costs on top of the disk. Large writes are also compared with blocks that are reserved but were never
   written, like those of a growing log.
3. Everything acknowledged is read back from the files by another reader and compared: a row whose records are not all
   in the files is an error, not a number.
4. Callers are coroutines that wait for each append before they send the next record. The clock starts after a short
   warm-up and stops before the last callers end.
5. Each workload runs in its own process, so none inherits another's memory.

A workload is an `async def f(bench) -> list[Row]`; those of this room are in `appends`, and `suite` has their table and
runs them. `latency`, `report` and `chart` draw; they know nothing of files or logs. Nothing here judges a machine: the
project's own targets, other stores and further workloads are in its repository, under tests/benchmarks.
"""
