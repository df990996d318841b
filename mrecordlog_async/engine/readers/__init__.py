"""Waits for memory to change: tails and consumers, the removal of old records, the watch over a slow disk."""
