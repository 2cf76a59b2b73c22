"""How much of a prompt stays the same from turn to turn, and why it does not."""
