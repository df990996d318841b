"""The data pipeline: logs as a Spark data source (`format("mrecordlog")`), and the ready-made jobs around it.

The data source:

    source          the class that Spark loads                 reader          batch read from services
    stream          streaming read                             writer          batch and streaming write
    directory       batch read of a log directory              blocks          runs to Arrow RecordBatches and back
    options         what a user may set                        option_names    which options exist
    option_values   how their texts are read                   fleet           all services of one query
    checkpoint      what an offset in a checkpoint holds       proof           what became of a queue
    offsets         what is new, what was lost                 partitions      how a batch is split into tasks
    moments         the positions of a time                    history         which log is where, and if it went back
    servers         their names and connections                lookups         those that DNS names stand for
    outages         what follows if one is down                planning        what a batch requests of them
    restoring       what a restore does with one task's rows   held_logs       logs that a stream must not read
    listed_plans    plans that the listing already holds

One service, without pyspark or pyarrow:

    client          its calls                                  connection      requests with retries
    fetch           reading ranges of records                  responses       what it returns
    probe           whether it responds again

The jobs around it:

    drain           from logs to a table, exactly once         drain_query     its streaming query
    drain_progress  what it reports                            drain_steps     what it does around the query
    refusal         a detected loss stays refused              preflight       its settings; what it refuses to start
    identity        the query of a checkpoint                  batches         Spark's own files about batches
    columns         columns from JSON payloads                 delta/          Delta tables, one transaction per batch
    lake            directories of tables and checkpoints      shared_storage  whether every machine sees the table
    local_lake      on a disk of this machine                  hadoop_lake     on any other file system
    load            from a table into a log                    job_command     what both commands share
    arguments       their command lines                        consumer/       a stream acknowledges, or truncates
    drain_metrics   metrics of a drain for Prometheus          lag             how far it is behind
    kept            which queues keep records for a consumer   misread         payloads that Spark misreads
    row_batches     reads Parquet in pieces of memory

The processes:

    session         a SparkSession with the right settings     java            Java for machines without it
    python          the Python of Spark's workers              shims           scripts that stand in for both
    daemon          the process that starts them

Decided here, and why:

* An offset holds `[id, next_position]` of every queue, by the id of its log (see `checkpoint`). The queue's id is its
  incarnation: one that was deleted and recreated while a job was down is not read from the old position. A log that is
  not the one of the checkpoint holds back only itself (see `history`).
* A queue that is not in the checkpoint yet is **enrolled** first: its position enters the checkpoint in a batch
  without its records. It is read from the next batch on, because only a position in the checkpoint can be replayed.
* With the option `truncate` or `consumer` the source releases what a checkpoint has committed, in `latestOffset` as
  well as in `commit`: Spark calls `commit` one batch late, and never for the last one. A drain uses one of them.
* Importing this package needs neither Spark nor Arrow nor Java; `source` needs pyspark, `blocks` needs pyarrow.
"""
