"""Opening: from the bytes of a directory to the queues in memory. Blocking; no asyncio here.

`recovery` reads a log for its writer, `live_reader` and `follower` while a writer runs. `replay` applies log records to
queues, `torn_or_damaged` judges bytes that are not a batch, `recovered` is the result, and `cleanup` makes a recovered
log ready for its next batch.
"""
