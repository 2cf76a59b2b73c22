"""Chooses the best mix of tensor types for a file size, from each tensor's error at each type and the cost of an
error."""
