"""Five programs that measure, each with one table: `python -m tests.benchmarks PROGRAM`.

    core       appends, truncates and reads of the library, next to a file that is written and synced
    recovery   opening a log, next to reading its files
    service    requests of `mrecordlog serve`, next to an aiohttp handler that does nothing
    pipeline   a drain into a Delta table, next to Spark's own Parquet sink
    stores     appends of this log, LMDB, RocksDB, PostgreSQL and a file

All contenders of a case take turns, each in its own process, so a machine whose speed drifts slows all of them. Each
ratio is the median of the ratios of the rounds. `--against CHECKOUT` adds another version of this package.
"""
