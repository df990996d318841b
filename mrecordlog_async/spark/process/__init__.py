"""The processes that Spark needs on this machine: Java, and Python for its workers.

java    Java for machines without it
python  the Python of Spark's workers
shims   scripts that replace both
daemon  the process that starts the workers
"""
