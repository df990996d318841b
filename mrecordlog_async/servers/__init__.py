"""Decides which server is which: how they are written and found, which log each has, which may be used or are away.

Pure, for every driver: the fleet's on asyncio and Spark's on threads. Times are passed in. Only `resolve` asks the
network. Start reading at `roster`.
"""
