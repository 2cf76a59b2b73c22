"""The best mix of types for a size: errors of each tensor at each type, what an error costs, and the choice."""
