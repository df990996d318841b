"""Opening: from the bytes of a directory to the queues in memory. Blocking; no asyncio here.

`recovery` reads a log for its writer, `follower` and `beside` read next to one, `replay` applies log records to queues,
`recovered` is what comes out, `cleanup` makes a recovered log ready for its next batch.
"""
