"""What was read: which records are new, which are lost, whether a log is the one that was read. Pure.

offsets     the decisions of one trigger
history     which log is where, and whether it went back
proof       what became of a queue
partitions  how a batch is divided into tasks
"""
