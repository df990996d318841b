"""Runs `mrecordlog demo`: a service that is killed repeatedly, and the ledger that checks its records."""
