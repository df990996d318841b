"""The checkpoint of a stream: Spark's own files, and a directory that is synced.

lake            what a directory can do
local_lake      one on a disk of this machine
shared_storage  whether every machine sees a directory
batches         Spark's own files about batches
identity        the query of a checkpoint
named           the checkpoint that an option of the data source names
source_report   what the data source reports
"""
