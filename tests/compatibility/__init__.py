"""What an earlier release promised and wrote: this version must still have the names and read the bytes.

surface   the names that programs, dashboards and scripts rely on
contents  what a log holds, as text that can be compared
pipeline  what drains and a stream of Spark leave: a log, checkpoints, a table, files
record    `python -m tests.compatibility.record 0.2.0` keeps all of it for a release, in data/0.2.0
"""
