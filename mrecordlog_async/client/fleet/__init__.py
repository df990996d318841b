"""Several services as one: `RecordLogFleet` with its producers and consumers. Start reading at `fleet`."""
