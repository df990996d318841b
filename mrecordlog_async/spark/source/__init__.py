"""Reading logs and writing to them in Spark: `format("mrecordlog")`, in batches and as a stream."""
