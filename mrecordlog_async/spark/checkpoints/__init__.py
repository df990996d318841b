"""Durable files around a query: directories that are synced, Spark's own files, and what a drain notes next to them.

lake            what a directory of a drain can do
local_lake      one on a disk of this machine
hadoop_lake     one on any other file system; opens both, as Spark sees them
shared_storage  whether every machine sees the table
batches         Spark's own files about batches
identity        the query of a checkpoint
named           the checkpoint that an option of the data source names
source_report   what the data source reports to a drain
refusal         a loss that was detected stays refused
"""
