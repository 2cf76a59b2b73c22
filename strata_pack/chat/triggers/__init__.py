"""Finds templates that change their output when the conversation holds a trigger, by running them."""
