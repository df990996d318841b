"""The job from a table back into a log.

load       runs it, and counts every row
restoring  one task: stores rows, and counts those that are refused
"""
