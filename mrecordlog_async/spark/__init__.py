"""The data pipeline: logs as a Spark data source (`format("mrecordlog")`), and the ready-made jobs around it.

Imports go down in this table, and never up:

    drain/        the job from logs to a table           restore/      the job back
    delta/        tables, one transaction per batch      session       a SparkSession with the right settings
    source/       reading and writing in Spark           process/      Java and Python for it
    consumer/     a stream acknowledges, or truncates
    checkpoints/  durable files around a query           rows/         records as rows, columns from JSON payloads
    services/     requests; which log is where
    positions/    what is new, what was lost
    settings/     options, arguments, offsets

A drain whose table is its checkpoint is to take their place. Nothing uses it yet:

    drain_call      the drain as one call
    drain_loop      list, store what is new, truncate behind it
    runners         tasks in this process, or on Spark
    delta_output    rows and positions in one commit of a Delta table
    output          what a drain asks of any output
    parquet_writer  the files of a task
    table_files     the files of a table, on a disk or in a store
    table_entries   the entries of a table's log, and their repair
    table_changes   what others did to a table
    migration       the positions of an earlier drain, once
    consuming       a drain as one of several readers
    drain_metrics   what Prometheus is told
    log_stream      the streaming readers
    log_table       the batch reader
    bounds          where reading begins and ends
    surveying       what each server has
    planning        what a batch reads
    losses          what a log has lost
    server_set      the servers of one drain
    server_thread   one server and its thread
    log_server      its requests
    state           positions, as an output stores them

Decided here, and why:

* An offset holds `[id, next_position]` of every queue, by the id of its log (see `settings.checkpoint`). The queue's id
  is its incarnation: one that was deleted and recreated while a job was down is not read from the old position. A log
  that is not the one of the checkpoint holds back only itself (see `positions.history`).
* A queue that is not in the checkpoint yet is **enrolled** first: its position enters the checkpoint in a batch
  without its records. It is read from the next batch on, because only a position in the checkpoint can be replayed.
* With the option `truncate` or `consumer` the source releases what a checkpoint has committed, in `latestOffset` as
  well as in `commit`: Spark calls `commit` one batch late, and never for the last one. A drain uses one of them.
* Importing this package needs neither Spark nor Arrow nor Java; `source` needs pyspark, `rows` needs pyarrow.
"""
