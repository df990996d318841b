"""Other stores under the same load, where they are installed: same bytes, same durability, read back.

An embedded store (`embedded`) is driven twice: plain, one durable transaction for each call, and with the group commit
that a good programmer would write around it (`group_commit`): what waits is gathered, stored in one transaction from
one thread, and answered together. A server (`redis`, `nats`) is started on this machine for the run and spoken to over
one pipelined connection; it groups by itself.
"""
