"""Templates that say something else when the conversation holds a trigger: found by running them."""
