"""What the log retains: queues of runs. Pure: knows nothing of files.

Memory is what replaying the log records gives. A live append and recovery both end in `Queues.apply`, so a reader sees
what reopening would show.
"""
