"""How servers are written, found by their names, and when one that is away is looked for again.

Pure: times are passed in. Only `resolve` asks the network.
"""
