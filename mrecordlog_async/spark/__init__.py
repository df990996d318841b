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
    consuming        a drain as one of several readers
    drain_metrics    what Prometheus is told
    surveying        what each server has
    planning         what a batch reads
    losses           what a log has lost
    server_set       the servers of one drain
    server_thread    one server and its thread
    log_server       its requests
    state            positions, as an output stores them
    session          a SparkSession with the right settings

The data source. Imports go down in this table, and never up:

    source/       reading and writing in Spark           process/      Java and Python for it
    consumer/     a stream acknowledges, or truncates
    checkpoints/  the checkpoint of a stream             rows/         records as rows
    services/     requests; which log is where
    positions/    what is new, what was lost
    settings/     options, offsets

Readers that are to take the place of those in `source/`. Nothing uses them yet:

    log_stream      the streaming readers
    log_table       the batch reader
    bounds          where reading begins and ends

Decided here, and why:

* An offset holds `[id, next_position]` of every queue, by the id of its log (see `settings.checkpoint`). The queue's id
  is its incarnation: one that was deleted and recreated while a job was down is not read from the old position. A log
  that is not the one of the checkpoint holds back only itself (see `positions.history`).
* A queue that is not in the checkpoint yet is **enrolled** first: its position enters the checkpoint in a batch
  without its records. It is read from the next batch on, because only a position in the checkpoint can be replayed.
* With the option `truncate` or `consumer` the source releases what a checkpoint has committed, in `latestOffset` as
  well as in `commit`: Spark calls `commit` one batch late, and never for the last one.
* Importing this package needs neither Spark nor Arrow nor Java; `source` needs pyspark, `rows` needs pyarrow.
"""
