"""Training of models that do not fit: a store of tensors on disk, and a pipeline over layers."""

from tensorjax.offload._groups import tensors
from tensorjax.offload._layers import Engine, Layer
from tensorjax.offload._trace import Span, Trace
from tensorjax.offload._trainer import Step, Trainer

__all__ = ["Engine", "Layer", "Span", "Step", "Trace", "Trainer", "tensors"]
