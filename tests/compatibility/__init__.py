"""What an earlier release promised and wrote: this version must still have the names and read the bytes.

surface   the names that programs, dashboards and scripts rely on
contents  what a log holds, as text that can be compared
record    `python -m tests.compatibility.record 0.2.0` keeps both for a release, in data/0.2.0
"""
