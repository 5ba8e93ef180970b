"""Replacement of the dense layers of a Flax NNX model by tensorised ones, by path patterns."""

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
from flax import nnx

from tensorjax.nn._dense_checks import check_plain
from tensorjax.nn._embeddings.embedding_base import Embedding
from tensorjax.nn._embeddings.padded import PaddedEmbed
from tensorjax.nn._general import TensorLinearGeneral, flat
from tensorjax.nn._linear_base import TensorLinear
from tensorjax.nn._specs import Dense, Spec

# What rules may replace; other subclasses do more than their layer.
_DENSE = (nnx.Linear, nnx.LinearGeneral, nnx.Embed, PaddedEmbed)

Rules = Mapping[str, Spec | None] | Sequence[tuple[str, Spec | None]]


def tensorize(
    model: object,
    rules: Rules,
    *,
    init: Literal["svd", "random"] = "svd",
    tol: float | None = None,
    rngs: nnx.Rngs | None = None,
) -> Any:
    """Copies a model, with the dense layers that match the rules replaced by tensorised ones.

    Every `flax.nnx.Linear`, `flax.nnx.LinearGeneral` (of which `flax.nnx.MultiHeadAttention` is
    made) and `flax.nnx.Embed` is held against the rules, by its path in the model, such as
    "encoder/layers/0/mlp/up"; the first rule that matches decides. A layer that several places
    share stays shared, and matches by any of its paths. Biases, dtypes and precision are kept. A
    LinearGeneral becomes a `TensorLinearGeneral`, which holds the tensorised layer. Other modules
    stay as they are, subclasses of these among them, and a LinearGeneral with batch axes: `summary`
    lists them.

    Args:
      model: any NNX module; it is not changed.
      rules: patterns and specs, in order. A pattern is a glob over the whole path, as in
        `fnmatch.fnmatchcase`: "*" stands for anything, slashes included, "?" for one character,
        "[ab]" for one of some. The spec None, like `Dense`, leaves a layer as it is.
      init: "svd" converts the weights by `tensorjax.nn.from_linear` and `from_embedding`, and the
        layers keep the certificates; "random" draws new ones.
      tol: for "svd", the relative error of every weight; with ranks in the specs, at most those.
      rngs: for "random".

    Returns:
      The copy, of the class of ``model``; a tensorised layer where the model itself is replaced.

    Raises:
      TypeError: an argument that is no NNX module or no spec; with "svd", abstract parameters.
      ValueError: a rule that matches nothing, a parameter tied to another layer, no ``rngs`` for
        "random", and all that the specs and the conversions raise, with the path of the layer.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> rngs = nnx.Rngs(0)
      >>> model = nnx.Sequential(nnx.Linear(64, 96, rngs=rngs), nnx.Linear(96, 8, rngs=rngs))
      >>> rules = {"layers/1": None, "*": nn.TT(rank=8)}
      >>> small = nn.tensorize(model, rules)
      >>> [type(layer).__name__ for layer in small.layers]
      ['TTLinear', 'Linear']
      >>> small.layers[0].certificate.ranks
      (8, 8, 8)

    Source: ours.
    """
    if not _is_module(model):
        raise TypeError(
            f"model: expected an NNX module, got {type(model).__name__}; tensorise the modules in "
            "it one by one, or hold them in one, such as nnx.List or nnx.Dict"
        )
    pairs = list(rules.items()) if isinstance(rules, Mapping) else rules
    if not isinstance(pairs, list | tuple) or not pairs or not all(map(_is_rule, pairs)):
        raise ValueError(
            f'rules: expected patterns and specs, such as {{"*": nn.TT(rank=30)}}, got {rules!r}'
        )
    for pattern, spec in pairs:
        if spec is not None and not isinstance(spec, Spec):
            raise TypeError(
                f"rules[{pattern!r}]: expected a spec such as nn.TT(rank=30), or None, got {spec!r}"
            )
    if init not in ("svd", "random"):
        raise ValueError(f'init: expected "svd" or "random", got {init!r}')
    if init == "random" and rngs is None:
        raise ValueError("rngs: expected nnx.Rngs to draw new weights from, got None")
    if init == "random" and tol is not None:
        raise ValueError('tol: expected None with init="random"; tolerances are for init="svd"')
    copy = nnx.clone(model)
    made: dict[int, Any] = {}
    found = _matched(copy, pairs)
    _refuse_tied(copy, found)
    for layer, paths, spec in found:
        try:
            made[id(layer)] = _replaced(layer, spec, init, tol, rngs)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{paths[0] or 'the model itself'}: {error}") from error
    if id(copy) in made:
        return made[id(copy)]
    _swap(copy, made)
    return copy


def summary(model: object) -> str:
    """Formats a table of a tensorised model's layers: shapes, ranks, parameters, compression.

    Args:
      model: any NNX module.

    Returns:
      A text: one line per layer, shared ones once, with path, class, features, modes, ranks, the
      parameters of a dense layer, the parameters now, and their ratio; the last line is the whole
      model.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.TT(rank=4).linear(64, 96, rngs=nnx.Rngs(0))
      >>> print(nn.summary(nnx.List([layer])))
      path  layer     features  modes       ranks  dense  numbers  ratio
      0     TTLinear  64 → 96   8·8 | 8·12  4 4 4  6,240      444   14.1
      all                                          6,240      444   14.1

    Source: ours.
    """
    rows, saved = [], 0
    for layer, paths in _places(model).values():
        if isinstance(layer, TensorLinear | Embedding | nnx.Linear | nnx.Embed):
            sizes, bias = _sizes(layer)
            dense, now = (math.prod(sizes) + bias) * _copies(layer), numbers(layer)
            saved += dense - now
            name, features = type(layer).__name__, f"{sizes[0]} → {sizes[1]}"
            rows.append((paths[0], name, features, *_folds(layer), *_counts(dense, now)))
        elif isinstance(getattr(layer, "kernel", None), nnx.Variable):
            own = [v for v in vars(layer).values() if isinstance(v, nnx.Param)]
            now = sum(math.prod(v.shape) for v in own)
            rows.append((paths[0], type(layer).__name__, "as it is", "", "", *_counts(now, now)))
    total = numbers(model)
    rows.append(("all", "", "", "", "", *_counts(total + saved, total)))
    return _table(
        ("path", "layer", "features", "modes", "ranks", "dense", "numbers", "ratio"), rows
    )


def _sizes(layer: Any) -> tuple[tuple[int, int], int]:
    """Returns a layer's rows and columns as a matrix and its bias length, for the summary."""
    if isinstance(layer, Embedding | nnx.Embed):
        return (layer.num_embeddings, layer.features), 0
    return (layer.in_features, layer.out_features), 0 if layer.bias is None else layer.out_features


def _copies(layer: Any) -> int:
    """Counts the layers stacked in one of a model, by the leading axes of its parameters."""
    if isinstance(layer, nnx.Linear):
        lead = layer.kernel.shape[:-2]
    elif isinstance(layer, nnx.Embed):
        lead = layer.embedding.shape[:-2]
    else:
        lead = layer.gates[0].shape[:-1] if layer.gates else ()
    return math.prod(lead)


def _folds(layer: Any) -> tuple[str, str]:
    """Returns modes and ranks of a model's layer for the summary; empty for a dense one."""
    if isinstance(layer, TensorLinear):
        sides = (layer.in_shape, layer.out_shape)
    elif isinstance(layer, Embedding):
        sides = (layer.num_shape, layer.feature_shape)
    else:
        return "", ""
    modes = " | ".join("·".join(map(str, side)) for side in sides)
    return modes, " ".join(map(str, layer.ranks))


def _counts(dense: int, now: int) -> tuple[str, str, str]:
    return f"{dense:,}", f"{now:,}", f"{dense / now:.3g}" if now else ""


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Formats the summary of a model as text columns; the last three are right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[-3:] = [cell.strip().rjust(len(cell)) for cell in cells[-3:]]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def numbers(model: Any) -> int:
    """Counts the parameters of a model, as in the summary of a tensorised one."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def _matched(model: Any, pairs: Sequence[tuple[str, Any]]) -> list[tuple[Any, list[str], Spec]]:
    """Returns the model's layers to replace, their paths, and their first rules' specs."""
    found, used = [], set()
    candidates = [p for p in _places(model).values() if _replaceable(p[0])]
    for layer, paths in candidates:
        hits = [
            pattern
            for pattern, _ in pairs
            if any(fnmatch.fnmatchcase(path, pattern) for path in paths)
        ]
        used.update(hits)
        spec = next((spec for pattern, spec in pairs if pattern in hits), None)
        if spec is not None and not isinstance(spec, Dense):
            found.append((layer, paths, spec))
    for pattern, _ in pairs:
        if pattern not in used:
            known = ", ".join(paths[0] or "the model itself" for _, paths in candidates[:20])
            raise ValueError(
                f"rules: expected every pattern to match a dense layer, but {pattern!r} matches "
                f"none of: {known or '(the model has none)'}"
            )
    return found


def _replaceable(module: Any) -> bool:
    """Checks whether `tensorize` may replace a module: plain, dense, without batch axes."""
    return type(module) in _DENSE and not getattr(module, "batch_axis", ())


def _refuse_tied(model: Any, found: Sequence[tuple[Any, list[str], Spec]]) -> None:
    """Raises ValueError if a layer to tensorize shares a parameter with another module."""
    holders: dict[int, list[tuple[int, str]]] = {}
    for module, paths in _places(model).values():
        for name, value in vars(module).items():
            if isinstance(value, nnx.Variable):
                place = "/".join(filter(None, (paths[0], name)))
                holders.setdefault(id(value), []).append((id(module), place))
    matched = {id(layer) for layer, _, _ in found}
    for places in holders.values():
        if len(places) > 1 and any(module in matched for module, _ in places):
            tied = " and ".join(place for _, place in places)
            raise ValueError(
                f"rules: expected layers with parameters of their own, but {tied} are one; share "
                "the whole layer instead, or leave these dense by the spec None"
            )


def _replaced(layer: Any, spec: Spec, init: str, tol: float | None, rngs: Any) -> Any:
    """Builds the replacement of a model's dense layer: converted by SVD, or freshly drawn."""
    if isinstance(layer, nnx.LinearGeneral):
        check_plain(layer)
        new = _replaced(flat(layer), spec, init, tol, rngs)
        return TensorLinearGeneral(new, layer.in_features, layer.out_features, layer.axis)
    linear = isinstance(layer, nnx.Linear)
    if init == "svd":
        convert = spec.from_linear if linear else spec.from_embedding
        new, _ = convert(layer, tol=tol)
        return new
    check_plain(layer)
    if not linear:
        return spec.embedding(
            layer.num_embeddings,
            layer.features,
            dtype=layer.dtype,
            param_dtype=layer.embedding.dtype,
            padding_idx=getattr(layer, "padding_idx", None),
            rngs=rngs,
        )
    new = spec.linear(
        layer.in_features,
        layer.out_features,
        use_bias=layer.bias is not None,
        dtype=layer.dtype,
        param_dtype=layer.kernel.dtype,
        rngs=rngs,
    )
    # Only shapes: then there is no bias to keep.
    if layer.bias is not None and not isinstance(layer.bias.get_value(), jax.ShapeDtypeStruct):
        new.bias = layer.bias.copy()
    if new.precision is None:
        new.precision = layer.precision
    return new


def _places(model: Any) -> dict[int, tuple[Any, list[str]]]:
    """Maps every module of a model, by identity, to the module and all paths to it."""
    found: dict[int, tuple[Any, list[str]]] = {}

    def visit(module: Any, path: tuple[str, ...], above: frozenset[int]) -> None:
        if id(module) in above:
            return  # a cycle
        found.setdefault(id(module), (module, []))[1].append("/".join(path))
        for steps, child in _children(module):
            visit(child, (*path, *steps), above | {id(module)})

    visit(model, (), frozenset())
    return found


def _children(module: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the submodules of a model's module, also those in lists, tuples and dicts."""
    for name, value in vars(module).items():
        if isinstance(value, nnx.Pytree):
            yield (name,), value
        elif isinstance(value, list | tuple | dict):
            for keys, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=_is_module):
                if _is_module(leaf):
                    yield (name, *(_name(key) for key in keys)), leaf


def _swap(model: Any, made: Mapping[int, Any]) -> None:
    """Replaces dense modules by tensorised ones wherever they occur in a model."""
    for module, _ in _places(model).values():
        for name, value in list(vars(module).items()):
            if isinstance(value, nnx.Pytree):
                if id(value) in made:
                    setattr(module, name, made[id(value)])
            elif isinstance(value, list | tuple | dict):
                new = jax.tree.map(lambda x: made.get(id(x), x), value, is_leaf=_is_module)
                old_leaves = jax.tree.leaves(value, is_leaf=_is_module)
                if any(id(leaf) in made for leaf in old_leaves):
                    setattr(module, name, nnx.data(new))


def _is_rule(pair: Any) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)


def _is_module(x: Any) -> bool:
    return isinstance(x, nnx.Pytree)


def _name(key: Any) -> str:
    return str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key))))
