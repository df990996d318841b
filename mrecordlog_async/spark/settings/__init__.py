"""Everything that a user may set for reads and writes: options of the data source, and offsets as both may give them.

options        the options: each one once
option         what the rows of the table are made of
option_values  how texts are read
offset         an offset, as JSON and as a value
"""
