"""Parameter groups: parameters that are updated together, and where they begin."""
