"""The on-disk format."""
