"""Turns what requests ask for into reads of the log: checked parameters, plans, and runs cut at limits."""
