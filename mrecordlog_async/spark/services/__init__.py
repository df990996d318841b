"""The services of a query, without pyspark or pyarrow: blocking calls that are repeated while that may help.

client      what Spark requests of one service
connection  one exchange, and how often it is repeated
fetch       ranges of records: cut into requests, resumed where a response broke off, checked against the plan
fleet       all services: which log is where, and who is down
"""
