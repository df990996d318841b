"""The data pipeline: logs as a Spark data source (`format("mrecordlog")`), and the ready-made jobs around it.

    options     what a user may set                          pure
    checkpoint  what an offset holds                         proof       whether a log still matches an offset
    offsets     what is new, what was lost                   partitions  how a batch is split into tasks    pure
    client      one service, blocking (`http.client`)      fleet     all services of one query
    blocks      runs to Arrow RecordBatches and back, without touching a record
    directory   a log directory instead of a service
    reader      batch read          stream      streaming read          writer      batch and streaming write
    source      the data source that Spark loads
    java        Java for machines without it                 session     a SparkSession with the right settings
    drain       the exactly-once job from logs to a lake     preflight   its settings, and what it refuses to start
    identity    who owns an output                           refusal     a detected loss stays refused
    release     what is stored and may be truncated          batches     Spark's files about batches
    lake        the file systems of output and checkpoint    shared_storage  proof that every machine sees the output
    load        Parquet into a log                           job_command what both commands share
    drain_progress  what a drain reports

Decided here, and why:

* An offset holds `[id, next_position]` of every queue (see `checkpoint`). The id is the queue's incarnation: a queue
  that was deleted and recreated while a job was down is detected, and not read from the old position.
* A queue that is not in the checkpoint yet is **enrolled** first: its position enters the checkpoint in a batch
  without its records. It is read from the next batch on, because only a position in the checkpoint can be replayed.
* With the option `truncate` the source truncates what a checkpoint has committed, in `latestOffset` as well as in
  `commit`: Spark calls `commit` one batch late, and never for the last one. `drain` does not use the option: it
  truncates what it has read back from its output (`release`).
* Importing this package needs neither Spark nor Arrow nor Java; `source` needs pyspark, `blocks` needs pyarrow.
"""
