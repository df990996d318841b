"""Rows as Spark has them: from runs of records and back.

blocks         runs to Arrow RecordBatches and back
stream_writer  the base of writers that get Arrow batches
"""
