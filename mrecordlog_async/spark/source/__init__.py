"""Reading logs and writing to them in Spark: `format("mrecordlog")`, in batches and as a stream.

source        the class that Spark loads
reader        a table, from services
directory     a table, from a log directory
stream        a stream: Spark's calls, in its order
trigger       one trigger of a stream, in seven steps
planning      what a batch requests of the services
listed_plans  plans that a listing already holds
moments       the positions of a time
writer        rows into a service
"""

from mrecordlog_async.spark.process.offers import refuse_without_data_sources

refuse_without_data_sources()  # before a module of this room fails with the name of a module of pyspark
