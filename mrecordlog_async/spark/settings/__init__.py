"""Everything that a user may set: options of the data source, arguments of the jobs, offsets as both may give them.

options        the options: each one once
drain_job      the settings that only a drain has: each one once
option         what the rows of both tables are made of
option_values  how texts are read
arguments      the command lines that follow from the tables
offset         an offset, as JSON and as a value
"""
