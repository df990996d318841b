"""The command line: `main` has the table of commands, the other modules have the commands."""
