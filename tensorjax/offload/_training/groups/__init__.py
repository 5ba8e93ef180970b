"""Parameter groups: parameters that are updated together, and their initial values."""
