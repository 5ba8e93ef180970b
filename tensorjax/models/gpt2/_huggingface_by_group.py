"""Hugging Face's GPT-2 weights, read and written by parameter group, one in memory at a time."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax._typing import DTypeLike
from tensorjax.models.gpt2 import _huggingface as published
from tensorjax.models.gpt2._config import GPT2Config
from tensorjax.models.gpt2._offload_layers import initial


def read_groups(
    path: Path,
    *,
    dropout: float | None = None,
    param_dtype: DTypeLike = jnp.float32,
    **changes: Any,
) -> tuple[GPT2Config, dict[str, Callable[[], Any]]]:
    """Opens Hugging Face's GPT-2 weights, to be read one parameter group at a time.

    With them `offload.Trainer` can fine-tune a model that is never in memory as a whole.

    Args:
      path: a folder in Hugging Face's format, as for `from_huggingface`.
      dropout: rate; None takes that of the files.
      param_dtype: of the parameters, whatever the files hold.
      **changes: of `GPT2Config`, such as ``remat="full"``. The sizes are those of the files.

    Returns:
      The configuration, and for each group a function without arguments that reads what `groups`
      would return.

    Raises:
      FileNotFoundError, ValueError, ModuleNotFoundError: as `from_huggingface`; arrays that are not
        finite are found when they are read.

    Example:
      >>> import tempfile
      >>> from flax import nnx
      >>> from tensorjax.models import gpt2
      >>> model = gpt2.GPT2(gpt2.GPT2Config.tiny(), rngs=nnx.Rngs(0))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     gpt2.to_huggingface(model, folder)
      ...     config, params = gpt2.read_groups(folder)
      ...     norm = params["norm"]()
      >>> sorted(params)[:2], sorted(norm), norm["scale"].shape == (config.features,)
      (['block000', 'block001'], ['bias', 'scale'], True)

    Source: the format in which Hugging Face's transformers saves its GPT2LMHeadModel; the groups
    are ours.
    """
    config, arrays = published.opened(path, dropout, changes)
    arrays.check_head()
    drawn = initial(config, jax.random.key(0), param_dtype=param_dtype)

    def read(group: str) -> Any:
        def one(where: Any, like: jax.ShapeDtypeStruct) -> np.ndarray:
            out = np.zeros(like.shape, like.dtype)
            arrays.read(_name(group, where), config, out)
            return out

        return jax.tree_util.tree_map_with_path(one, jax.eval_shape(drawn[group]))

    return config, {group: functools.partial(read, group) for group in drawn}


def write_groups(
    config: GPT2Config,
    groups: Mapping[str, Any] | Iterable[tuple[Any, ...]],
    path: Path,
    *,
    end: int | None = None,
) -> None:
    """Writes GPT-2 weights group by group in Hugging Face's format, one file for each group.

    All are written to a hidden folder beside ``path``, which is renamed to ``path`` when complete.

    Args:
      config: `GPT2Config` of the model.
      groups: parameters by group, or pairs (name, parameters), such as `offload.Trainer.groups`
        yields, of which only one is in memory at a time; states that come with them are left out.
      path: a folder that does not exist yet, or is empty.
      end: id of the token between two texts, as for `to_huggingface`.

    Raises:
      FileExistsError: something lies there.
      ValueError: groups that are missing, or are not those of a dense GPT-2.
      ModuleNotFoundError: safetensors is not installed.

    Example:
      >>> import tempfile
      >>> from flax import nnx
      >>> from tensorjax.models import gpt2
      >>> model = gpt2.GPT2(gpt2.GPT2Config.tiny(), rngs=nnx.Rngs(0))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     gpt2.write_groups(model.config, gpt2.groups(model), folder)
      ...     again = gpt2.from_huggingface(folder)
      >>> bool((again.tokens[...] == model.tokens[...]).all())
      True

    Source: the format in which Hugging Face's transformers saves its GPT2LMHeadModel; the groups
    are ours.
    """
    pairs: Any = groups.items() if isinstance(groups, Mapping) else groups
    end, where = published.checked_end(config, end), {}
    total, dtype = 0, np.dtype(np.float32)
    with published.new_folder(path) as folder:
        for group, params, *_ in pairs:
            tensors = {}
            for at, leaf in jax.tree_util.tree_leaves_with_path(params):
                name = _name(group, at)
                tensors[name] = published.as_published(name, config, np.asarray(leaf))
            file = f"model-{group}.safetensors"
            published.save(tensors, folder / file)
            where |= dict.fromkeys(tensors, file)
            total += sum(x.nbytes for x in tensors.values())
            dtype = next((x.dtype for x in tensors.values()), dtype)
        published.check_names(set(where), config, Path(path))
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / published.INDEX).write_text(json.dumps(index, indent=2) + "\n")
        published.write_config(config, dtype, folder, end)


def _name(group: str, where: Any) -> str:
    """Returns a GPT-2 parameter's published name, to read or write the weights group by group."""
    path = tuple(str(entry.key) for entry in where if hasattr(entry, "key"))
    if group.startswith("block") and path in published.BLOCK:
        return f"h.{int(group.removeprefix('block'))}.{published.BLOCK[path]}"
    name = published.MODEL.get(("norm", *path) if group == "norm" else path)
    if name is None:
        raise ValueError(
            f"groups: expected those of a dense GPT-2, got {'.'.join([group, *path])}, for which "
            "there is no published form"
        )
    return name
