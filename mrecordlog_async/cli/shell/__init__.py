"""Turns a command line into a call: arguments, settings, the named log or service, and exit codes."""
