"""Admits calls: they become commands, which wait in order until the writer takes them, or are refused and counted."""
