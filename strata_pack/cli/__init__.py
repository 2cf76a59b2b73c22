"""The command line: a module for each command, the shared flags and output, the table of commands."""
