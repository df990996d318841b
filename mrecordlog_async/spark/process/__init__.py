"""The processes that Spark needs on this machine: Java, and Python for its workers.

java    Java for machines without it
python  the Python of Spark's workers
offers  whether pyspark has data sources in Python
shims   scripts that replace both
daemon  the process that starts the workers
"""
