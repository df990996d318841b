"""Blocking file access: the interface to the operating system, the lock, and segments as plain bytes, not frames."""
