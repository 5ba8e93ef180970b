"""Forward and backward passes by layers, with transfers of parameters and gradients."""
