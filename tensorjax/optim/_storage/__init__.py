"""Storage of models and optimiser states: checkpoints, and cores of eight bits."""
