"""Finds templates that change their output if the conversation contains a trigger, by running them."""
