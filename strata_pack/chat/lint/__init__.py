"""Static rules for chat templates."""
