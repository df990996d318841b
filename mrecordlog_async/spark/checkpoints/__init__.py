"""Durable files around a query: directories that are synced, Spark's own files, and what a drain notes next to them."""
