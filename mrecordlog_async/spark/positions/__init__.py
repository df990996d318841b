"""Compares offsets and listings: which records are new or lost, whether a log is the one that was read. Pure.

offsets     the decisions of one trigger
history     which log is where, and whether it went back
proof       what became of a queue
partitions  how a batch is divided into tasks
"""
