"""`mrecordlog bench`: measure your disk, and what this log does on it.

`disk` measures single syncs of a small write, `callers` the log under 1 to 1,000 coroutines that wait for each append
(`drive`). Both alternate in short rounds, because the speed of a shared disk drifts. Every figure is a quantile or a
median of the rounds. What was acknowledged is read back from the files by another reader at the end.

Nothing here judges a machine. The benchmarks of the project, with other stores, are in its repository, under
tests/benchmarks.
"""
