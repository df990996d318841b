"""What `mrecordlog demo` runs: a service that is killed again and again, and the ledger it is checked against."""
