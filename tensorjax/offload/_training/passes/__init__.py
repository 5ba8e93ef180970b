"""Forward and backward passes by layers: engine, parameters and gradients in transfer."""
