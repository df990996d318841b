"""Which server is which: how servers are written and found, which log each has, whether it may be used, who is away.

Pure, for every driver: the fleet's on asyncio and Spark's on threads. Times are passed in. Only `resolve` asks the
network. Start reading at `roster`.
"""
