"""The project's own measurements: `python -m tests.benchmarks`, at the top of the repository.

They add to `mrecordlog bench` what a user does not need: other stores under the same callers (`peers`), further
workloads (`workloads`), and the targets of this project (`targets`). `compare` measures two versions of the log in
turn, one row in 20 seconds. More commands measure the service next to a bare aiohttp handler (`http_service`), and how
fast Spark reads a log (`spark_throughput`).

    pip install -e '.[dev]' --group benchmarks
    python -m tests.benchmarks suite --list
    python -m tests.benchmarks suite --gc-threshold 20000 --markdown
    python -m tests.benchmarks suite --only spark-drain spark-idle spark-triggers    # 5 minutes
    python -m tests.benchmarks publish    # all, written into docs/; about 15 minutes on a machine that is idle
    python -m tests.benchmarks compare main . --only one-caller --quick    # before and after a change
    python -m tests.benchmarks http-service
    python -m tests.benchmarks spark-throughput

The group brings LMDB, RocksDB and a NATS server. Redis comes from the system (`redis-server` on PATH). A store that is
missing is skipped and named in the report. Results of one machine are in docs/benchmarks.
"""
