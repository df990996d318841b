"""Blocking files: the seam to the operating system, the lock, segments as rows of bytes. Knows nothing of frames."""
