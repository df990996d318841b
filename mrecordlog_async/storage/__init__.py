"""Blocking files: the seam to the operating system, the lock, and segments as rows of bytes. Knows nothing of frames."""
