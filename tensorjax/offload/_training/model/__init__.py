"""A model as layers: forward and backward passes, weights and gradients on their way."""
