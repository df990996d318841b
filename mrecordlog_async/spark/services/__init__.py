"""The services of a query, without pyspark or pyarrow: blocking calls that are repeated while that may help.

client      what Spark requests of one service
connection  one exchange, and how often it is repeated
responses   what a service returns
fetch       ranges of records: cut into requests, resumed where a response broke off, checked against the plan
fleet       all services: which log is where
listings    lists all services at the same time
servers     what is known of each server, and a connection to it
lookups     the services behind DNS names
outages     which servers are down, and what follows for the others
held_logs   logs that a stream must not read
"""
