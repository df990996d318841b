"""What `mrecordlog demo` runs: a service that is killed repeatedly, and the ledger that checks its records."""
