"""Motion: what callers ask for becomes batches, batches become bytes on the disk, bytes become queues again.

An append goes admission → batch → journal (on the log's thread) → queues → answer. Opening goes files → frames →
records → queues in `recovery`.
"""
