"""The project's own measurements: `python -m tests.benchmarks`, at the top of the repository.

`mrecordlog bench` is the short look at a user's disk. Here are all workloads (`workloads`), the raw disk with the same
writes and syncs (`raw`), other stores under the same callers (`peers`), and the targets of this project (`targets`).
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

A workload is an `async def f(bench) -> list[Row]`; `suite` has their table and runs them; `targets` says what this
project wants of them. `compare` measures two versions of the log in turn, one row in 20 seconds. More commands measure
the service next to a bare aiohttp handler (`http_service`), and how fast Spark reads a log (`spark_throughput`).

    pip install -e '.[dev,benchmarks]'
    python -m tests.benchmarks suite --list
    python -m tests.benchmarks suite --gc-threshold 20000 --markdown
    python -m tests.benchmarks suite --only spark-drain spark-idle spark-triggers    # 5 minutes
    python -m tests.benchmarks publish    # all, written into docs/; about 25 minutes on a machine that is idle
    python -m tests.benchmarks publish --short    # the tables for users and the other stores; at most 10 minutes
    python -m tests.benchmarks compare main . --only one-caller --quick    # before and after a change
    python -m tests.benchmarks beyond-memory --memory 1024 --total 36000 --rounds 1    # 20 minutes, 80 GB
    python -m tests.benchmarks http-service
    python -m tests.benchmarks spark-throughput

The group brings LMDB, RocksDB and a NATS server. Redis and PostgreSQL come from the system (`redis-server` on PATH;
`initdb` and `postgres` there or where Debian puts them). A store that is missing is named in the report as not
measured. Results of one machine are in docs/benchmarks.
"""
