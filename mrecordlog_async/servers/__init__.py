"""Decides which server is which: how they are written and found, which log each has, which may be used or are away.

Pure: times are passed in. Only `resolve` asks the network. Start reading at `roster`.
"""
