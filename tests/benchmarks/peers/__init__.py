"""Other stores under the same load, where they are installed: same bytes, same durability, read back.

An embedded store (`embedded`) is driven through the group commit that a good programmer would write around it, with
what this log gives too: named queues, returned positions, a bound on what waits, safe cancellation (`group_commit`). A
server (`redis`, `nats`) is started on this machine for the run and driven over one pipelined connection; it groups
commits itself, and its own CPU time is not counted. The bare file (`bare_file`) has none of this: it is the ceiling.
"""
