"""The job from a table back into a log."""
