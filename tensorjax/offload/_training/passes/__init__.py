"""Forward and backward passes by layers, and the weights and gradients they move."""
