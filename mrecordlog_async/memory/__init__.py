"""What the log retains: queues of runs. Pure; never hears of files.

Memory is a fold over log records. A live append and recovery end in the same `Queues.apply`, so what a reader sees is
what reopening would show.
"""
