"""What was read: which records are new, which are lost, whether a log is the one that the checkpoint knows. Pure."""
