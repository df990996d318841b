"""The processes that Spark needs on this machine: Java, and Python for its workers."""
