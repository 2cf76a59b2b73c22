"""Chooses the best mix of types for a size from each tensor's error at each type and what an error costs."""
