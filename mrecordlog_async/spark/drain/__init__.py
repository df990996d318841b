"""The job from logs to a Delta table, which stores each record exactly once."""
