"""The job from logs to a Delta table, which stores each record exactly once.

job        runs a drain, and is its command
steps      what it refuses to start, and what it does around its query
query      its streaming query: started, followed, stopped
progress   what it reports
metrics    its metrics for Prometheus, and how far it is behind
command    signals, token files and sentences of both jobs
"""
