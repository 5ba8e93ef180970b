"""GPT-2 weights in Hugging Face's format: config.json and safetensors."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tensorjax import _check
from tensorjax._typing import DTypeLike
from tensorjax.models.gpt2._config import GPT2Config
from tensorjax.models.gpt2._model import GPT2

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
_PREFIX = "transformer."
_TANH = ("gelu_new", "gelu_pytorch_tanh")  # one function
_END = 50256  # id of "<|endoftext|>", the last one of the published vocabulary
_MOST = 8  # names that an error lists

# Options of a published configuration that GPT-2's weights are computed with, and no other value.
_FIXED = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",  # and by its other names
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
    "add_cross_attention": False,
}

# Path of a stacked parameter inside a block, and its published name behind "h.{i}.".
BLOCK: dict[tuple[str, ...], str] = {
    ("norm1", "scale"): "ln_1.weight",
    ("norm1", "bias"): "ln_1.bias",
    ("qkv", "kernel"): "attn.c_attn.weight",
    ("qkv", "bias"): "attn.c_attn.bias",
    ("out", "kernel"): "attn.c_proj.weight",
    ("out", "bias"): "attn.c_proj.bias",
    ("norm2", "scale"): "ln_2.weight",
    ("norm2", "bias"): "ln_2.bias",
    ("up", "kernel"): "mlp.c_fc.weight",
    ("up", "bias"): "mlp.c_fc.bias",
    ("down", "kernel"): "mlp.c_proj.weight",
    ("down", "bias"): "mlp.c_proj.bias",
}
MODEL: dict[tuple[str, ...], str] = {
    ("tokens",): "wte.weight",
    ("positions",): "wpe.weight",
    ("norm", "scale"): "ln_f.weight",
    ("norm", "bias"): "ln_f.bias",
}
# Masks that older files hold, which are no parameters.
_BUFFERS = (".attn.bias", ".attn.masked_bias")


def from_huggingface(
    path: Path,
    *,
    dropout: float | None = None,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    attention: str | None = None,
    **changes: Any,
) -> GPT2:
    """Loads a GPT-2 from a folder in Hugging Face's format.

    Args:
      path: a folder with ``config.json`` and ``model.safetensors``, or the parts that a
        ``model.safetensors.index.json`` names. Names may have the prefix ``transformer.``.
      dropout: rate; None takes ``resid_pdrop`` of the file. There is one rate here, and none of the
        attention weights: ``embd_pdrop`` and ``attn_pdrop`` of the file are not kept.
      dtype: of the computation; that of the parameters if None.
      param_dtype: of the parameters, whatever the files hold.
      attention: "xla", "cudnn" or None, as for `GPT2`.
      **changes: of `GPT2Config`, such as ``remat="full"``. The sizes are those of the files.

    Returns:
      A dense `GPT2` with the weights of the files, in ``param_dtype``, on the default device.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: the files are of another kind of model, are damaged, or hold arrays of other
        shapes, too few or too many; the message has the names.
      ModuleNotFoundError: safetensors is not installed.

    Example:
      >>> import tempfile
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax.models import gpt2
      >>> model = gpt2.GPT2(gpt2.GPT2Config.tiny(), rngs=nnx.Rngs(0))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     gpt2.to_huggingface(model, folder)
      ...     again = gpt2.from_huggingface(folder)
      >>> tokens = jnp.array([[1, 2, 3]])
      >>> bool((again(tokens) == model(tokens)).all())
      True

    Source: the format in which Hugging Face's transformers saves its GPT2LMHeadModel.
    """
    config, arrays = opened(path, dropout, changes)
    model = nnx.eval_shape(
        lambda: GPT2(
            config, dtype=dtype, param_dtype=param_dtype, attention=attention, rngs=nnx.Rngs(0)
        )
    )
    graph, abstract = nnx.split(model)

    def load(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        names, stacked = _published(path, config.layers)
        out = np.zeros(leaf.shape, leaf.dtype)
        for place, name in enumerate(names):
            arrays.read(name, config, out[place] if stacked else out)
        return jnp.asarray(out)

    params = jax.tree_util.tree_map_with_path(load, abstract)
    arrays.check_head()
    return nnx.merge(graph, params)


def to_huggingface(model: GPT2, path: Path, *, end: int | None = None) -> None:
    """Writes a GPT-2 in Hugging Face's format: ``config.json`` and ``model.safetensors``.

    Both are written to a hidden folder beside ``path``, which is renamed to ``path`` when complete.

    Args:
      model: dense, its parameters concrete. The padding of its vocabulary is left out.
      path: a folder that does not exist yet, or is empty.
      end: id of the token between two texts, with which generation begins and ends. None is that of
        the published vocabulary, 50256, if the model has this vocabulary, and no such token else.

    Raises:
      FileExistsError: something lies there.
      ValueError: the layers are tensorised, for which there is no published form; an ``end``
        outside the vocabulary.
      ModuleNotFoundError: safetensors is not installed.

    Example:
      >>> import json, pathlib, tempfile
      >>> from flax import nnx
      >>> from tensorjax.models import gpt2
      >>> model = gpt2.GPT2(gpt2.GPT2Config.tiny(), rngs=nnx.Rngs(0))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     gpt2.to_huggingface(model, folder)
      ...     json.loads(pathlib.Path(folder, "config.json").read_text())["n_embd"]
      32

    Source: the format in which Hugging Face's transformers saves its GPT2LMHeadModel.
    """
    config = model.config
    end = checked_end(config, end)
    tensors: dict[str, np.ndarray] = {}
    with new_folder(path) as folder:
        for where, leaf in jax.tree_util.tree_leaves_with_path(nnx.split(model)[1]):
            names, stacked = _published(where, config.layers)
            value = np.asarray(leaf)
            for place, name in enumerate(names):
                tensors[name] = as_published(name, config, value[place] if stacked else value)
        save(tensors, folder / WEIGHTS)
        write_config(config, model.tokens[...].dtype, folder, end)


def opened(
    path: Any, dropout: float | None, changes: Mapping[str, Any]
) -> tuple[GPT2Config, "Arrays"]:
    """Opens a folder of Hugging Face weights; returns their configuration and a lazy reader."""
    folder = Path(path)
    given = _read_json(folder / "config.json")
    config = _config(given, dropout, changes)
    arrays = Arrays(folder)
    if given.get("tie_word_embeddings") is False and "lm_head.weight" not in arrays.places:
        raise ValueError(
            "config.json, tie_word_embeddings: expected True, or an lm_head.weight that is the "
            "token table, got False and no such array"
        )
    check_names(set(arrays.names), config, folder)
    return config, arrays


@contextlib.contextmanager
def new_folder(path: Any) -> Iterator[Path]:
    """Context manager that writes a Hugging Face folder atomically, by renaming a hidden one."""
    _safetensors()
    folder = Path(path).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder}: expected no such folder, or an empty one; name another")
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    partial.mkdir(parents=True)
    try:
        yield partial
        for written in partial.iterdir():
            with written.open("rb+") as file:
                os.fsync(file.fileno())
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def save(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes weights in Hugging Face's format as a safetensors file that PyTorch reads."""
    _safetensors().numpy.save_file(dict(tensors), path, metadata={"format": "pt"})


def as_published(name: str, config: GPT2Config, value: np.ndarray) -> np.ndarray:
    """Reshapes a GPT-2 weight to Hugging Face's shape; cuts off the padding of the vocabulary."""
    part = value[: config.vocabulary] if name == "wte.weight" else value
    return np.ascontiguousarray(part.reshape(_flat(name, part.shape)))


class Arrays:
    """Lazy reader of Hugging Face's safetensors files, by names less "transformer."."""

    def __init__(self, folder: Path) -> None:
        index, single = folder / INDEX, folder / WEIGHTS
        if index.exists() and not single.exists():
            places = _read_json(index).get("weight_map")
            if not isinstance(places, dict) or not places:
                raise ValueError(f"{index}: expected a weight_map from names to files, got none")
            parts = sorted({folder / part for part in places.values()})
        else:
            parts = [single]
        self.places: dict[str, tuple[Any, str]] = {}
        for part in parts:
            file = _opened(part)
            for name in file.keys():  # noqa: SIM118  (it is no dict)
                self.places[name.removeprefix(_PREFIX)] = (file, name)
        self.folder = folder

    @property
    def names(self) -> list[str]:
        """Names of the parameters in Hugging Face's safetensors files of a GPT-2."""
        return [name for name in self.places if not name.endswith(_BUFFERS)]

    def __call__(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        file, held = self.places[name]
        found = file.get_slice(held).get_shape()
        if tuple(found) != shape:
            raise ValueError(
                f"{self.folder}, {held}: expected shape {shape} for the sizes of config.json, "
                f"got {tuple(found)}"
            )
        array = file.get_tensor(held)
        # NumPy cannot reduce all the formats that weights are kept in.
        if not np.isfinite(array.astype(np.float32)).all():
            raise ValueError(f"{self.folder}, {held}: expected finite numbers, got NaN or Inf")
        return array

    def read(self, name: str, config: GPT2Config, out: np.ndarray) -> None:
        """Reads a Hugging Face weight into ``out``, reshaped and cast to its shape and dtype."""
        shape = out.shape
        wanted = (config.vocabulary, *shape[1:]) if name == "wte.weight" else shape
        array = self(name, _flat(name, wanted)).reshape(wanted)
        out[: wanted[0]] = cast(f"{self.folder}, {self.places[name][1]}", array, out.dtype)

    def check_head(self) -> None:
        """Raises ValueError if Hugging Face's output layer is not tied to the token table."""
        if "lm_head.weight" in self.places:
            (one, head), (other, table) = self.places["lm_head.weight"], self.places["wte.weight"]
            if not np.array_equal(one.get_tensor(head), other.get_tensor(table)):
                raise ValueError(
                    f"{self.folder}, {head}: expected the table {table}, to which GPT-2's output "
                    "layer is tied, got other numbers"
                )


def cast(where: str, array: np.ndarray, dtype: Any) -> np.ndarray:
    """Casts a weight in Hugging Face's format; ValueError if finite numbers become infinite."""
    with np.errstate(over="ignore"):
        found = array.astype(dtype)
    lost = np.isfinite(array) & ~np.isfinite(found)
    if lost.any():
        # NumPy cannot reduce all the formats that weights are kept in.
        most = np.abs(array[lost].astype(np.float64)).max()
        raise ValueError(
            f"{where}: expected numbers that {dtype} holds, got up to {most:.3g}; take a wider "
            "param_dtype"
        )
    return found


def check_names(found: set[str], config: GPT2Config, folder: Path) -> None:
    """Raises ValueError if Hugging Face's names are not those of a complete GPT-2."""
    wanted = {*MODEL.values()}
    wanted |= {f"h.{i}.{name}" for i in range(config.layers) for name in BLOCK.values()}
    missing, unknown = sorted(wanted - found), sorted(found - wanted - {"lm_head.weight"})
    if missing or unknown:
        raise ValueError(
            f"{folder}: expected the arrays of a GPT-2 of {config.layers} layers, "
            f"got {len(missing)} missing{_listed(missing)} and {len(unknown)} unknown"
            f"{_listed(unknown)}; config.json and the weights have to be of one model"
        )


def _listed(names: list[str]) -> str:
    if not names:
        return ""
    more = f", and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f" ({', '.join(names[:_MOST])}{more})"


def _published(path: Any, layers: int) -> tuple[list[str], bool]:
    """Returns the Hugging Face names of a parameter, and whether it is stacked over layers."""
    names = tuple(str(entry.key) for entry in path if hasattr(entry, "key"))
    if names in MODEL:
        return [MODEL[names]], False
    if names[0] == "blocks" and names[1:] in BLOCK:
        return [f"h.{i}.{BLOCK[names[1:]]}" for i in range(layers)], True
    raise ValueError(
        f"model: expected dense linear layers, got the parameter {'.'.join(names)}, for which "
        "there is no published form"
    )


def _flat(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a weight in Hugging Face's format, with q, k and v in one axis."""
    if name.endswith("c_attn.weight"):
        return (shape[0], shape[1] * shape[2])
    return (shape[0] * shape[1],) if name.endswith("c_attn.bias") else tuple(shape)


def _config(
    given: Mapping[str, Any], dropout: float | None, changes: Mapping[str, Any]
) -> GPT2Config:
    if given.get("activation_function") in _TANH:
        given = {**given, "activation_function": _FIXED["activation_function"]}
    for name, value in _FIXED.items():
        if given.get(name, value) != value and (name, given[name]) != (
            "tie_word_embeddings",
            False,
        ):
            raise ValueError(f"config.json, {name}: expected {value!r}, got {given[name]!r}")
    names = {
        "vocabulary": ("vocab_size",),
        "length": ("n_positions", "n_ctx"),
        "layers": ("n_layer",),
        "heads": ("n_head",),
        "features": ("n_embd",),
    }
    sizes: dict[str, Any] = {}
    for ours, theirs in names.items():
        held = [given[name] for name in theirs if name in given]
        if not held:
            raise ValueError(f"config.json: expected {' or '.join(theirs)}, got neither a size")
        sizes[ours] = held[0]
    fixed = sorted(set(sizes) & set(changes))
    if fixed:
        raise ValueError(f"{fixed[0]}: expected no such option, for config.json has that size")
    rate = given.get("resid_pdrop", 0.1) if dropout is None else dropout
    config = GPT2Config(**sizes, dropout=rate, **changes)
    if given.get("n_inner") not in (None, config.hidden):
        raise ValueError(
            f"config.json, n_inner: expected 4 n_embd = {config.hidden}, got {given['n_inner']}"
        )
    return config


def checked_end(config: GPT2Config, end: int | None) -> int | None:
    """Returns the end-of-text id for Hugging Face's ``config.json``; ValueError if invalid.

    By default 50256, or None for models of another vocabulary.
    """
    if end is None:
        return _END if config.vocabulary == _END + 1 else None
    return _check.integer("end", end, low=0, high=config.vocabulary - 1)


def write_config(config: GPT2Config, dtype: Any, folder: Path, end: int | None) -> None:
    """Writes the ``config.json`` of a GPT-2 in Hugging Face's format."""
    text = json.dumps(_published_config(config, dtype, end), indent=2) + "\n"
    (folder / "config.json").write_text(text)


def _published_config(config: GPT2Config, dtype: Any, end: int | None) -> dict[str, Any]:
    return {
        **_FIXED,
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocabulary,
        "bos_token_id": end,
        "eos_token_id": end,
        "n_positions": config.length,
        "n_ctx": config.length,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_embd": config.features,
        "n_inner": None,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "initializer_range": 0.02,
        "torch_dtype": jnp.dtype(dtype).name,
    }


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: expected a folder with config.json and {WEIGHTS}, as GPT-2 is published; "
            "fetch it first, nothing is downloaded here"
        )
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def _opened(path: Path) -> Any:
    library = _safetensors()
    if not path.exists():
        found = "found nothing"
        for other in sorted(path.parent.glob("pytorch_model*.bin")):
            found = (
                f"found {other.name}; convert it, as transformers does by "
                "save_pretrained(folder, safe_serialization=True)"
            )
        raise FileNotFoundError(f"{path}: expected weights as safetensors, {found}")
    try:
        return library.safe_open(path, framework="numpy")
    except library.SafetensorError as error:
        raise ValueError(f"{path}: expected a whole safetensors file, got {error}") from error


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "weights as published need the package 'safetensors': "
            "pip install -c constraints.txt -e '.[nn]'",
            name="safetensors",
        ) from error
    return safetensors
