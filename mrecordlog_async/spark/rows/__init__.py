"""Rows as Spark and Parquet have them: from runs of records and back, with columns from JSON payloads."""
