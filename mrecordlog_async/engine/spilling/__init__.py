"""Records that are on the disk alone: how they leave memory while the log is open, and how they are read again."""
