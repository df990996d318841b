"""The command line: one module a command, and `main` with the table of them."""
