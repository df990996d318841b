"""Promises small helps with Python, its event loop and its process that know nothing of logs."""
