"""What a user may set: options of the data source, arguments of the jobs, and offsets as both may give them."""
