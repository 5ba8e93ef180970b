"""GPT-2 with dense or tensorised layers: training, Hugging Face weights, text generation.

Names by task:

  model      GPT2 GPT2Config generate
  weights    from_huggingface to_huggingface read_groups write_groups
  offload    layers initial groups load_groups batch engine

``help(gpt2.GPT2)`` describes the model.

`GPT2` computes logits and losses from one definition: layers stacked under `jax.lax.scan`, linear
layers dense or in a format of `tensorjax.nn`, and all communication delegated to a layout of
`tensorjax.parallel`. `from_huggingface` and `to_huggingface` read and write weights as
they are published, `generate` continues prompts with a cache of keys and values. `layers`,
`initial`, `batch`, `engine`, `groups` and `load_groups` are for `tensorjax.offload`, by layers;
`read_groups` and `write_groups` take published weights to it and back, a layer at a time.

Source: A. Radford, J. Wu, R. Child, D. Luan, D. Amodei, I. Sutskever, "Language Models are
Unsupervised Multitask Learners" (2019), and the released code and weights.
"""

from tensorjax import _extras
from tensorjax.models.gpt2._config import GPT2Config
from tensorjax.models.gpt2._generate import generate
from tensorjax.models.gpt2._huggingface import from_huggingface, to_huggingface
from tensorjax.models.gpt2._huggingface_by_group import read_groups, write_groups
from tensorjax.models.gpt2._model import GPT2
from tensorjax.models.gpt2._offload_layers import (
    batch,
    engine,
    groups,
    initial,
    layers,
    load_groups,
)

__all__ = [
    "GPT2",
    "GPT2Config",
    "batch",
    "engine",
    "from_huggingface",
    "generate",
    "groups",
    "initial",
    "layers",
    "load_groups",
    "read_groups",
    "to_huggingface",
    "write_groups",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints the table of the docstring
