"""Replacement of the dense layers of a Flax NNX model by tensorised ones, by path patterns."""

from typing import Any, Literal, get_args

from flax import nnx

from tensorjax import _check
from tensorjax.nn._models.dense_layer_replacement import Ranks, replacement
from tensorjax.nn._models.path_rules import Rules, matched, rules_with
from tensorjax.nn._models.spec_choice import Init, choose
from tensorjax.nn._models.traversal import check_module, swap, tie, ties
from tensorjax.nn._specs import TT


def tensorize(
    model: object,
    rules: Rules | Literal["auto"] | None = None,
    *,
    init: Init = "svd",
    tol: float | None = None,
    rank: int | None = None,
    size: int | None = None,
    ratio: float | None = None,
    compress_to: float | None = None,
    stacked: Ranks = "own",
    rngs: nnx.Rngs | None = None,
) -> Any:
    """Copies a model and replaces the dense layers that match the rules by tensorised ones.

    Every `flax.nnx.Linear`, `flax.nnx.LinearGeneral` (of which `flax.nnx.MultiHeadAttention` is
    made), `flax.nnx.Conv` and `flax.nnx.Embed` is held against the rules, by its path in the model,
    such as "encoder/layers/0/mlp/up"; the first rule that matches decides. A layer that several
    places share stays shared, and matches by any of its paths; layers tied by one kernel share the
    parameters of the new one, if all get one spec. Layers stacked by `flax.nnx.vmap` (parameters
    with leading axes) are converted one by one and stacked. Biases, dtypes and precision are kept.
    A LinearGeneral becomes a `TensorLinearGeneral`, which holds the tensorised layer. Other modules
    stay as they are, subclasses of these among them, a LinearGeneral with batch axes, a Conv with
    groups or a mask, and layers in `flax.nnx.WeightNorm` or `flax.nnx.SpectralNorm`: `summary`
    lists them. `detensorize` is the way back.

    Args:
      model: any NNX module; it is not changed.
      rules: patterns and specs, in order. A pattern is a glob over the whole path, as in
        `fnmatch.fnmatchcase`: "*" stands for anything, slashes included, "?" for one character,
        "[ab]" for one of some. The spec None, like `Dense`, leaves a layer as it is. One spec alone
        is for all layers. "auto" chooses format, shapes and ranks of every layer by `choose`, for
        ``size``, ``ratio``, ``tol`` or ``compress_to``.
        None is "auto", or with ``rank`` tensor trains for all layers.
      init: "svd" converts the weights by `tensorjax.nn.from_linear`, `from_conv` and
        `from_embedding`, and the layers keep the certificates; "random" draws new ones.
      tol: for "svd", the relative error of every weight; with ranks in the specs, at most those.
      rank: of the specs that have none.
      size: parameters of the whole new model, at most; `choose` gives ranks to the specs that have
        none.
      ratio: the same as the share that the model is to shrink by.
      compress_to: the same for a training that cuts the model to so many times fewer parameters, by
        ``optim.rank_adaptive(inner, compress_to=…)``: it begins with about twice the size, and
        layers stay dense only as far as the size at the end has room for them. Weights with the
        spectrum of random ones keep their norm, where a truncation as for a given size would leave
        a part of it, and deep models without a signal.
      stacked: ranks of stacked layers for ``tol``: "own", of every layer its own, the others padded
        with zeros, gates included; or "shared", the largest for all.
      rngs: for "random".

    Returns:
      The copy, of the class of ``model``; a tensorised layer where the model itself is replaced.

    Raises:
      TypeError: an argument that is no NNX module or no spec; with "svd", abstract parameters.
      ValueError: a rule that matches nothing, a parameter tied to a layer that does not get the
        same spec, parameters that are not stacked over the same first axes, no ``rngs`` for
        "random", more than one of rank, size, ratio, compress_to and tol, a size that is too small,
        and all that the specs and the conversions raise, with the path of the layer.

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
    check_module(model, "tensorise the modules in it one by one, or hold them in an nnx.List")
    _check.choice("init", init, ("svd", "random"))
    _check.choice("stacked", stacked, get_args(Ranks))
    if init == "random" and rngs is None:
        raise ValueError("rngs: expected nnx.Rngs to draw new weights from, got None")
    if init == "random" and tol is not None:
        raise ValueError('tol: expected None with init="random"; tolerances are for init="svd"')
    targets = {"rank": rank, "size": size, "ratio": ratio, "compress_to": compress_to}
    pairs = _pairs(model, rules, targets, tol, init)
    copy = nnx.clone(model)
    made: dict[int, Any] = {}
    found = matched(copy, pairs)
    tied = ties(copy, found)
    for layer, paths, spec in found:
        try:
            begins = compress_to is not None
            made[id(layer)] = replacement(layer, spec, init, tol, stacked, rngs, begins)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{paths[0] or 'the model itself'}: {error}") from error
    tie(made, tied)
    if id(copy) in made:
        return made[id(copy)]
    swap(copy, made)
    return copy


def _pairs(
    model: Any, rules: Any, targets: dict[str, Any], tol: float | None, init: Init
) -> list[tuple[str, Any]]:
    """Checks the arguments of `tensorize`; returns its rules as pairs (pattern, spec)."""
    given = {name: value for name, value in targets.items() if value is not None}
    if len(given) > 1 or (tol is not None and "rank" not in given and given):
        named = " and ".join([*given, *(["tol"] if tol is not None else [])])
        raise ValueError(
            f"rank: expected one of rank=, size=, ratio=, compress_to= and tol=, got {named}"
        )
    rank = given.pop("rank", None)
    wanted = given or ({} if tol is None else {"tol": tol})
    if rules is None and (rank is not None or wanted):
        rules = {"*": TT()} if rank is not None else "auto"
    if isinstance(rules, str) and rules == "auto":
        if rank is not None:
            raise ValueError(
                'rank: expected None with rules="auto", which chooses the ranks; give size=, '
                "ratio=, tol= or compress_to="
            )
        if not wanted:
            raise ValueError(
                'rules: expected size=, ratio=, tol= or compress_to= with "auto", got none'
            )
        return [*choose(model, "auto", init=init, **wanted).items()]
    pairs = rules_with(rules, rank)
    return [*choose(model, pairs, init=init, **given).items()] if given else pairs
