"""Offloaded training beyond memory: an asynchronous tensor store on disk and a layer-wise trainer.

Names by task:

  train      Trainer Layer Step Engine Schedule Activations Overflow; Trace Span
  plan       plan Plan Choice Machine Times measure layer_seconds tensors
  store      TensorStore Lease Leases capacity Statistics Traffic; backends Backend
  export     to_safetensors to_orbax
  errors     StoreError CapacityError CorruptError LockedError MismatchError StoreWarning

``help(offload.Trainer)`` describes a class with its methods.

Needs the extra ``offload``. `TensorStore` keeps tensors in one preallocated file, moves them
asynchronously past the page cache, and commits them atomically. `Trainer` takes a model layer by
layer (`Layer`), with parameters and optimiser states in the store or in host memory; several
processes train one model together, each with its part in a store of its own.

Example: three steps, of which two are committed; the next training resumes after these.
    >>> import tempfile
    >>> import jax.numpy as jnp
    >>> import optax
    >>> from tensorjax import offload
    >>> def linear(params, x, batch, key):
    ...     return (batch["x"] if x is None else x) @ params[0]
    >>> def loss(params, x, batch, key):
    ...     return jnp.mean((x @ params[0] - batch["y"]) ** 2)
    >>> layers = [offload.Layer(name="a", apply=linear), offload.Layer(name="b", apply=loss)]
    >>> params, optimizer = {"a": jnp.ones((3, 4)), "b": jnp.ones((4, 1))}, optax.adam(0.1)
    >>> batch = {"x": jnp.ones((2, 3)), "y": jnp.ones((2, 1))}
    >>> folder = tempfile.mkdtemp()
    >>> capacity = offload.capacity(offload.tensors(params, optimizer))
    >>> def training(steps):
    ...     with (
    ...         offload.TensorStore(folder, capacity, backend="threads", staging=1 << 22) as store,
    ...         offload.Trainer(layers, params, optimizer, store=store, commit_every=2) as trainer,
    ...     ):
    ...         first = trainer.steps
    ...         for number in range(first, steps):
    ...             trainer.step(batch, data=number)
    ...         return first
    >>> training(3), training(5)
    (0, 2)

`measure` and `plan` find which groups to keep in memory and which on disk; ``Plan.store`` and
``Plan.options`` hand that to a store and a trainer. `Trainer.evaluate` gives a loss between steps,
`Trainer.trace` records what happened; `to_safetensors` and `to_orbax` export a trainer, or a store
whose trainer was closed.

Words:
  group: parameters that are updated together, under one name; a layer uses one or more.
  version: how many updates a group has had.
  deadline: position, in the layers of all steps, of the layer that waits for something.
  lease: a tensor in staging memory, until it is released.
  spill: a gradient that waits in the store, for want of memory.
  lent: a gradient in the pinned memory that an accelerator wrote it to, where XLA cannot write.
  gated: held back until the norm of all gradients is known.

Modules: the store in _store, the trainer in _training, the planner in _planning. The trainer
imports the store, the planner both.
"""

from tensorjax import _extras
from tensorjax.offload._errors import (
    CapacityError,
    CorruptError,
    LockedError,
    MismatchError,
    StoreError,
    StoreWarning,
)
from tensorjax.offload._planning.machine_speed import Machine, layer_seconds, measure
from tensorjax.offload._planning.memory_plan import Plan, plan
from tensorjax.offload._planning.placement_costs import Times
from tensorjax.offload._planning.placement_search import Choice
from tensorjax.offload._store.backends import Backend
from tensorjax.offload._store.backends import available as backends
from tensorjax.offload._store.disk.extents import capacity
from tensorjax.offload._store.lease import Lease, Leases
from tensorjax.offload._store.statistics import Statistics, Traffic
from tensorjax.offload._store.store import TensorStore
from tensorjax.offload._training.export import to_orbax, to_safetensors
from tensorjax.offload._training.options import Overflow, Schedule
from tensorjax.offload._training.passes.engine import Engine
from tensorjax.offload._training.passes.layers import Activations, Layer
from tensorjax.offload._training.trace import Span, Trace
from tensorjax.offload._training.trainer import Step, Trainer
from tensorjax.offload._training.updates.parameter_groups import tensors

__all__ = [
    "Activations",
    "Backend",
    "CapacityError",
    "Choice",
    "CorruptError",
    "Engine",
    "Layer",
    "Lease",
    "Leases",
    "LockedError",
    "Machine",
    "MismatchError",
    "Overflow",
    "Plan",
    "Schedule",
    "Span",
    "Statistics",
    "Step",
    "StoreError",
    "StoreWarning",
    "TensorStore",
    "Times",
    "Trace",
    "Traffic",
    "Trainer",
    "backends",
    "capacity",
    "layer_seconds",
    "measure",
    "plan",
    "tensors",
    "to_orbax",
    "to_safetensors",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints the table of the docstring
