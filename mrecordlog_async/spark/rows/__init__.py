"""Rows as Spark and Parquet have them: from runs of records and back, with columns from JSON payloads.

blocks       runs to Arrow RecordBatches and back
columns      columns from JSON payloads
misread      payloads that Spark reads otherwise than they say
rest         what no column holds
row_batches  Parquet in pieces that fit into memory
stream_writer  the base of writers that get Arrow batches
"""
