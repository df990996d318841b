"""Prints what commands found, for people and for pipes, and reads their standard input."""
