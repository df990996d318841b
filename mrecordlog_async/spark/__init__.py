"""The data pipeline: logs as a Spark data source (`format("mrecordlog")`), and the drain into a table.

The drain, whose table is its checkpoint:

    drain_command    the drain as a command
    drain_arguments  its command line
    drain_call       the drain as one call
    lake_show        what a table has, and how far its logs are stored
    drain_loop       list, store what is new, truncate behind it
    json_columns     columns from JSON payloads, and functions of the user
    runners          tasks in this process, or on Spark
    delta_output     rows and positions in one commit of a Delta table
    output           what a drain asks of any output
    parquet_writer   the files of a task
    table_files      the files of a table, on a disk or in a store
    table_entries    the entries of a table's log, and their repair
    table_changes    what others did to a table
    delta_reasons    errors of delta-rs in one line
    migration        the positions of an earlier drain, once
    drain_metrics    what Prometheus is told
    session          a SparkSession with the right settings

The data source:

    data_source      the class that Spark loads
    options          its options, each once
    log_table        the batch reader
    log_stream       the streaming readers
    offsets          where a stream continues, in Spark's checkpoint
    bounds           where reading begins and ends
    log_writer       rows into a service

Both use:

    surveying        what each server has
    planning         what a batch reads
    losses           what a log has lost
    consuming        a drain or a stream as one of several readers
    server_set       the servers of one drain or stream
    discovery        the services behind DNS names
    server_thread    one server and its thread
    log_server       its requests
    connection       one exchange, and how often it is repeated
    blocks           runs of records to Arrow and back
    state            positions, as an output stores them

The processes that Spark needs on this machine:

    java             Java for machines without it
    worker_python    the Python of Spark's workers
    worker_daemon    the process that starts the workers
    shims            scripts that replace Java and Python
    pyspark_version  whether pyspark has data sources in Python

Decided here, and why:

* An offset, as a drain's positions, holds `[id, next_position]` of every queue, by the id of its log. The queue's id is
  its incarnation: one that was deleted and recreated while a job was down is not read from the old position. A log that
  is not the one of the checkpoint holds back only itself (see `losses`).
* With the option `truncate` or `consumer` a stream releases what a checkpoint has committed, in `latestOffset` as well
  as in `commit`: Spark calls `commit` one batch late, and never for the last one.
* Importing this package needs neither Spark nor Arrow nor Java.
"""
