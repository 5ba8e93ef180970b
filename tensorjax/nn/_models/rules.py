"""Rules of `tensorize`: path patterns, and the layer specifications for what they match."""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from flax import nnx

from tensorjax.nn._embeddings.padded import PaddedEmbed
from tensorjax.nn._models.traversal import places
from tensorjax.nn._specs import Dense, Spec

# What rules may replace; other subclasses do more than their layer.
_DENSE = (nnx.Linear, nnx.LinearGeneral, nnx.Conv, nnx.Embed, PaddedEmbed)

# A spec alone is that of all layers.
Rules = Spec | Mapping[str, Spec | None] | Sequence[tuple[str, Spec | None]]


def rules_with(rules: Any, rank: int | None) -> list[tuple[str, Spec | None]]:
    """Returns the rules as pairs (pattern, spec), checked, with ``rank`` where a spec has none."""
    if isinstance(rules, Spec):
        rules = {"*": rules}
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
    return [(pattern, _with_rank(spec, rank)) for pattern, spec in pairs]


def pattern(path: str) -> str:
    """Returns the path pattern of a rule of `tensorize` that matches exactly one path."""
    return path.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")


def _with_rank(spec: Spec | None, rank: int | None) -> Spec | None:
    if rank is None or spec is None or getattr(spec, "rank", rank) is not None:
        return spec
    return dataclasses.replace(spec, rank=rank)  # type: ignore[call-arg]  # all such have one


def matched(model: Any, pairs: Sequence[tuple[str, Any]]) -> list[tuple[Any, list[str], Spec]]:
    """Lists the layers of a model that the rules of `tensorize` match, with paths and specs."""
    found, used = [], set()
    candidates = [p for p in places(model).values() if replaceable(p[0])]
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


def replaceable(module: Any) -> bool:
    """Whether `tensorize` may replace a module: a plain dense layer without groups or mask."""
    if type(module) not in _DENSE or getattr(module, "batch_axis", ()):
        return False
    return not isinstance(module, nnx.Conv) or (
        module.feature_group_count == 1 and module.mask is None
    )


def _is_rule(pair: Any) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
