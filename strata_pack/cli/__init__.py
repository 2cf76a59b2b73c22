"""Implements the command line: a module for each command, the shared flags and output, and the table of commands."""
