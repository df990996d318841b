"""Delta tables without a jar: each batch of a drain is one transaction of the table, identified by its content.

    content     what a batch holds; whether it is in the table already      pure
    place       where a table is: a disk of this machine or an object store
    parts       the tasks' side: rows become durable Parquet files
    table       the driver's side: one durable commit for each batch
    sink        both, as Spark calls them, and reading a table
    entries     the files of the table's log
    changes     what others may have done to the table
    reasons     what an error of delta-rs says
    start       what a drain decides about its table before the query starts
    confirm     a stored batch that cannot run again
    upkeep      larger files, no old rows
    vacuum      no files of the table's writers that no version needs
    resume      a new checkpoint for a table whose own is lost
    show        what a table holds
    recovery    what a start repairs: files that were left half written

Each commit carries two transactions (Delta's word for a pair of an application's name and a number): `Q` = N, the id of
Spark's query and the number of its batch, and `Q/content`, a digest of what the batch holds. Batch N is stored only if
the table stands at N - 1. At N with the same digest it is skipped. Anything else ends the query with a sentence that
says what it looks like. Every batch is committed, even one without rows.

The order on a disk, because neither delta-rs nor Spark syncs anything:

    1  each data file; then the table's directory
    2  the checkpoint's file system, with offsets/N
    3  the commit: delta-rs links a new entry of the table's log
    4  the entry: its bytes to a new file, synced, renamed over it, the directory synced; even if the batch is skipped
    5  Spark writes commits/N
    6  the checkpoint's file system, before each truncate of a log

So the end of the last batch with a commit file is proof that everything before it is durable in the table.

| a kill or a power cut | leaves | the next start |
|---|---|---|
| after offsets/N | nothing else, or an empty offsets/N | runs batch N, or plans it again |
| after some data files | files that no entry names | runs batch N; a vacuum removes the files |
| after the sync of the checkpoint | the same | the same |
| after the entry is linked | N in the table, or an empty or torn entry | skips N, or sets the entry aside and runs N |
| after the entry is durable | N in the table, without commits/N | skips N and confirms it |
| after commits/N | everything, or an empty commits/N | truncates up to N, or skips N and truncates |
| before or inside a truncate | the log has some of N's records | truncates the rest |

`abort` deletes nothing: an error out of a commit means that its outcome is unknown. Files without an entry are removed
by a vacuum only. delta-rs' own hooks are off: it would write checkpoints of the table and delete entries without a
sync.
"""
