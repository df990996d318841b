"""The write path: calls become batches, batches become bytes on the disk, and memory follows.

An append passes through admission → batch → journal (on the log's thread) → queues → acknowledgement. Opening a log is
files → frames → records → queues, in `recovery`.
"""
