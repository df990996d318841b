"""The calls to one service, for Spark's processes: blocking, repeated while that may help, and checked.

client      what Spark requests
connection  one exchange, and how often it is repeated
fetch       ranges of records: cut into requests, resumed where a response broke off, checked against the plan
"""
